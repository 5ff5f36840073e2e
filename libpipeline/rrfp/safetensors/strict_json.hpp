/// JSON without duplicate keys. The JSON library silently keeps the last duplicate, so a file with
/// two tensors of one name would be misread.
#pragma once

#include <cstddef>
#include <string_view>

#include <nlohmann/json.hpp>

#include <rrfp/base/result.hpp>

namespace rrfp::safetensors {

/// More levels than any valid header or index has.
inline constexpr std::size_t strict_depth_max = 8;

/// Errors do not name the source of the text.
result<nlohmann::json> parse_strict(std::string_view text);

}  // namespace rrfp::safetensors

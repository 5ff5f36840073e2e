/// JSON in which no key stands twice. The JSON library keeps the last one silently, and a file with
/// two tensors of a name would be read as another one than its writer meant.
#pragma once

#include <cstddef>
#include <string_view>

#include <nlohmann/json.hpp>

#include <rrfp/schedule/result.hpp>

namespace rrfp::safetensors {

/// Deeper than anything that a header or an index holds.
inline constexpr std::size_t strict_depth_max = 8;

/// Errors say what is wrong, not where the text comes from.
result<nlohmann::json> parse_strict(std::string_view text);

}  // namespace rrfp::safetensors

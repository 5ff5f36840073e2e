/// The header of a file: the dtype, shape and byte range of each tensor.
///
///   {"__metadata__": {"format": "pt"},
///    "weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
///
/// The tensors cover the data after the header without overlap and without holes, so a file cannot
/// hide other content.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <rrfp/safetensors/dtype.hpp>

namespace rrfp::safetensors {

/// Parses JSON without duplicate keys: the JSON library silently keeps the last duplicate, so a
/// file with two tensors of one name would be misread. Errors do not name the source of the text.
result<nlohmann::json> parse_strict(std::string_view text);

inline constexpr std::string_view metadata_key = "__metadata__";

struct header {
  /// In the order of their byte ranges.
  std::vector<tensor_info> tensors;
  string_map metadata;
};

/// `data_bytes` follow the header. Errors name the tensor, not the file.
result<header> parse_header(std::string_view text, std::uint64_t data_bytes);

/// The text of a header, padded with spaces so that the data after the 8-byte length and the header
/// is aligned to 8. Error: a tensor name or a metadata string is not UTF-8.
result<std::string> compose_header(std::span<const tensor_info> tensors,
                                   const string_map& metadata);

}  // namespace rrfp::safetensors

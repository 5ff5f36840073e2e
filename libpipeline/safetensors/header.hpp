/// The header of a file: what its tensors are and where they lie.
///
///   {"__metadata__": {"format": "pt"},
///    "weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
///
/// The data that follows is covered by the tensors, without overlap and without a hole: no byte of
/// a file is without a meaning, so that nothing can be hidden in one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/safetensors/dtype.hpp>

namespace rrfp::safetensors {

inline constexpr std::string_view metadata_key = "__metadata__";

struct header {
  /// In the order of their bytes.
  std::vector<tensor_info> tensors;
  string_map metadata;
};

/// `data_bytes` follow the header. Errors name the tensor, not the file.
result<header> parse_header(std::string_view text, std::uint64_t data_bytes);

/// The text of a header, padded with spaces so that data after it and its 8 bytes of length is
/// aligned to 8. Error: a name or a text of the metadata is not UTF-8.
result<std::string> compose_header(std::span<const tensor_info> tensors,
                                   const string_map& metadata);

}  // namespace rrfp::safetensors

/// The metadata of a rank's file: for each tensor, which part of the whole tensor the rank holds,
/// and how exported model files store the whole tensor.
///
///   "rrfp.parts": {"layers.0.attention.qkv.weight":
///                  {"whole": [96, 32], "dimension": 0, "blocks": 3, "offset": 0, "length": 16}}
///
/// The description does not depend on the number of ranks: it is that of a shard
/// (rrfp/base/tensor_buffer.hpp). A tensor without an entry is whole.
///
///   "rrfp.stored": {"transformer.h.0.attn.c_attn.weight": {"transposed": true, "sizes": []}}
///
/// A checkpoint holds tensors in the form that the model computes with. Export transposes or
/// reshapes a tensor that has an entry (see rrfp/torch/stage_module.hpp) and copies any other
/// unchanged.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include <rrfp/base/result.hpp>
#include <rrfp/base/tensor_buffer.hpp>

namespace rrfp::checkpoint {

/// Keys of the metadata.
inline constexpr std::string_view parts_key = "rrfp.parts";
inline constexpr std::string_view stored_key = "rrfp.stored";

/// Keyed by tensor name.
using parts = std::map<std::string, shard, std::less<>>;

std::string to_json(const parts& all);
/// Error: the text is malformed; does not name the file.
result<parts> parse_parts(std::string_view text);

/// Keyed by tensor name.
using stored_forms = std::map<std::string, stored_form, std::less<>>;

std::string to_json(const stored_forms& all);
/// Error: the text is malformed; does not name the file.
result<stored_forms> parse_stored(std::string_view text);

/// Error: a tensor of shape `shape` cannot be the part `p`.
status check_part(const shard& p, std::span<const std::int64_t> shape);

}  // namespace rrfp::checkpoint

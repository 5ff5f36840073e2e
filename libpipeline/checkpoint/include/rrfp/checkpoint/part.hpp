/// What a rank's file says of its tensors beside their names, types and shapes, in its metadata:
/// which part of a whole tensor it has, and how models on disk hold that.
///
///   "rrfp.parts": {"layers.0.attention.qkv.weight":
///                  {"whole": [96, 32], "dimension": 0, "blocks": 3, "offset": 0, "length": 16}}
///
/// In words that do not depend on how many ranks there were (see compute/shard.hpp, which means the
/// same by them): one dimension is cut into equal blocks, and a part is the range [offset, offset +
/// length) of each. A tensor without an entry is whole.
///
///   "rrfp.stored": {"transformer.h.0.attn.c_attn.weight": {"transposed": true, "sizes": []}}
///
/// A checkpoint holds what the model computes with. A tensor with an entry is exported transposed,
/// or under other sizes (see compute/stage_module.hpp); one without, as it is.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/schedule/result.hpp>

namespace rrfp::checkpoint {

/// The name of the metadata.
inline constexpr std::string_view parts_key = "rrfp.parts";

struct part {
  std::vector<std::int64_t> whole;
  std::int64_t dimension = 0;
  std::int64_t blocks = 1;
  std::int64_t offset = 0;
  std::int64_t length = 0;

  bool operator==(const part&) const = default;
};

/// By the name of the tensor.
using parts = std::map<std::string, part, std::less<>>;

std::string to_json(const parts& all);
/// Error: what is wrong, without the file's name.
result<parts> parse_parts(std::string_view text);

inline constexpr std::string_view stored_key = "rrfp.stored";

struct stored {
  bool transposed = false;
  std::vector<std::int64_t> sizes;

  bool operator==(const stored&) const = default;
};

/// By the name of the tensor.
using stored_forms = std::map<std::string, stored, std::less<>>;

std::string to_json(const stored_forms& all);
/// Error: what is wrong, without the file's name.
result<stored_forms> parse_stored(std::string_view text);

/// Error: no tensor of that shape is such a part.
status check_part(const part& p, std::span<const std::int64_t> shape);

}  // namespace rrfp::checkpoint

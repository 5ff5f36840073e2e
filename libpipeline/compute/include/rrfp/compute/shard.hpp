/// Which part of a logical parameter a rank holds, in words that do not depend on how many ranks
/// there are: what one cut has written, another can read.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace rrfp::compute {

/// One dimension of the logical parameter is cut into `blocks` equal blocks (a fused projection to
/// q, k and v has three, any other one), and each block into ranges. The shard holds the range
/// [offset, offset + length) of every block, one block after the other, and all of the other
/// dimensions.
struct shard {
  std::vector<std::int64_t> whole;  ///< sizes of the logical parameter
  std::int64_t dimension = 0;
  std::int64_t blocks = 1;
  std::int64_t offset = 0;  ///< within a block
  std::int64_t length = 0;  ///< of each block

  bool operator==(const shard&) const = default;
};

/// The shard of rank `rank` of `ranks`, which divide the block.
shard even_shard(std::vector<std::int64_t> whole, std::int64_t dimension, std::int64_t blocks,
                 std::uint32_t rank, std::uint32_t ranks);

/// A copy of that part of `whole`, contiguous.
at::Tensor slice_of(const at::Tensor& whole, const shard& s);

/// Copies what `from` and `to`, shards of the same parameter, have in common. Returns how many
/// elements that was.
std::int64_t copy_overlap(const at::Tensor& from, const shard& from_shard, at::Tensor& to,
                          const shard& to_shard);

}  // namespace rrfp::compute

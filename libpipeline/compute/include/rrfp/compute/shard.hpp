/// Describes which part of a logical parameter a rank holds. The description does not depend on the
/// number of ranks, so a checkpoint can be read with another number of ranks.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace rrfp::compute {

/// One dimension of the logical parameter is divided into `blocks` equal blocks (three for a fused
/// projection to q, k and v, else one). The shard holds the range [offset, offset + length) of
/// every block, concatenated, and the other dimensions entirely.
struct shard {
  std::vector<std::int64_t> whole;  ///< sizes of the logical parameter
  std::int64_t dimension = 0;
  std::int64_t blocks = 1;
  std::int64_t offset = 0;  ///< within a block
  std::int64_t length = 0;  ///< of each block

  bool operator==(const shard&) const = default;
};

/// The shard of rank `rank`. `ranks` must divide the size of a block.
shard even_shard(std::vector<std::int64_t> whole, std::int64_t dimension, std::int64_t blocks,
                 std::uint32_t rank, std::uint32_t ranks);

/// A contiguous copy of the shard `s` of `whole`.
at::Tensor slice_of(const at::Tensor& whole, const shard& s);

/// Copies the overlap of two shards of one parameter. Returns the number of copied elements.
std::int64_t copy_overlap(const at::Tensor& from, const shard& from_shard, at::Tensor& to,
                          const shard& to_shard);

}  // namespace rrfp::compute

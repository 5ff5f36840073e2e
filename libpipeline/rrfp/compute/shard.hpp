/// Describes which part of a logical parameter a rank holds. The description does not depend on the
/// number of ranks, so a checkpoint can be read with another number of ranks.
#pragma once

#include <cstdint>
#include <vector>

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

}  // namespace rrfp::compute

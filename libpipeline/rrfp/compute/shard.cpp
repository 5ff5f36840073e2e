#include <utility>

#include <rrfp/base/check.hpp>
#include <rrfp/compute/parameters.hpp>

namespace rrfp::compute {

shard even_shard(std::vector<std::int64_t> whole, std::int64_t dimension, std::int64_t blocks,
                 std::uint32_t rank, std::uint32_t ranks) {
  const auto size = whole[static_cast<std::size_t>(dimension)];
  RRFP_CHECK(rank < ranks && size % (blocks * ranks) == 0, "the ranks divide the block evenly");
  const auto length = size / (blocks * ranks);
  return {std::move(whole), dimension, blocks, rank * length, length};
}

}  // namespace rrfp::compute

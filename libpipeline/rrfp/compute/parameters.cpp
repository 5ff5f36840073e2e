#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include <rrfp/base/check.hpp>
#include <rrfp/compute/parameters.hpp>

#include <xxhash.h>

namespace rrfp::compute {

namespace {

template <class T>
void sort_by_position(std::vector<T>& entries) {
  std::sort(entries.begin(), entries.end(), [](const T& a, const T& b) { return a.at < b.at; });
}

}  // namespace

shard even_shard(std::vector<std::int64_t> whole, std::int64_t dimension, std::int64_t blocks,
                 std::uint32_t rank, std::uint32_t ranks) {
  const auto size = whole[static_cast<std::size_t>(dimension)];
  RRFP_CHECK(rank < ranks && size % (blocks * ranks) == 0, "the ranks divide the block evenly");
  const auto length = size / (blocks * ranks);
  return {std::move(whole), dimension, blocks, rank * length, length};
}

result<gradient_norm> clip_gradients(std::vector<parameter_norm> of_all_ranks, double clip) {
  sort_by_position(of_all_ranks);
  double squared = 0;
  for (const auto& p : of_all_ranks) squared += p.squared;
  const double norm = std::sqrt(squared);
  if (!std::isfinite(norm)) {
    return error{"the norm of the gradient is " + std::to_string(norm) +
                 ": training has diverged (a lower train.lr or train.clip_norm may help)"};
  }
  const double scale = clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0;
  return gradient_norm{norm, scale};
}

std::uint64_t hash_of_model(std::vector<parameter_hash> of_all_ranks) {
  sort_by_position(of_all_ranks);
  std::vector<std::uint64_t> hashes;
  hashes.reserve(of_all_ranks.size());
  for (const auto& p : of_all_ranks) hashes.push_back(p.xxh64);
  return XXH64(hashes.data(), hashes.size() * sizeof(std::uint64_t), 0);
}

}  // namespace rrfp::compute

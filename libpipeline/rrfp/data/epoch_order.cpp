#include "epoch_order.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include <rrfp/base/check.hpp>
#include <rrfp/compute/keyed_hash.hpp>

namespace rrfp::data {

std::vector<std::uint32_t> shuffled(std::uint32_t count, std::uint64_t seed, std::uint64_t epoch) {
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0U);
  for (std::uint64_t i = count; i > 1; --i) {
    const auto hash = compute::keyed_hash(
        {static_cast<std::uint64_t>(compute::random_use::sample_order), seed, epoch, i});
    // The upper half of hash * i is uniform over [0, i).
    const auto chosen = ((hash >> 32) * i) >> 32;
    std::swap(order[i - 1], order[chosen]);
  }
  return order;
}

epoch_order::epoch_order(std::uint32_t count, std::uint64_t seed, job::sample_order order)
    : count_(count), seed_(seed), order_(order) {
  RRFP_CHECK(count > 0 && count <= samples_max, "samples to order");
}

std::vector<std::uint32_t> epoch_order::at(std::uint64_t first, std::uint64_t places) const {
  std::vector<std::uint32_t> samples;
  samples.reserve(places);
  while (samples.size() < places) {
    const auto place = first + samples.size();
    const auto begin = place % count_;
    const auto end = std::min<std::uint64_t>(count_, begin + places - samples.size());
    if (order_ == job::sample_order::file) {
      for (auto i = begin; i < end; ++i) samples.push_back(static_cast<std::uint32_t>(i));
    } else {
      const auto number = place / count_;
      const auto order = epochs_.at(number, [&] { return shuffled(count_, seed_, number); });
      samples.insert(samples.end(), order->begin() + static_cast<std::ptrdiff_t>(begin),
                     order->begin() + static_cast<std::ptrdiff_t>(end));
    }
  }
  return samples;
}

}  // namespace rrfp::data

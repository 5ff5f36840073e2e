/// Maps positions of a run to samples. Positions count from 0 over all steps; every `count`
/// positions form an epoch, which contains each sample once.
#pragma once

#include <cstdint>
#include <vector>

#include <rrfp/job/options.hpp>
#include <rrfp/simulate/last_steps.hpp>

namespace rrfp::data {

/// Callers must refuse data sets with more samples.
inline constexpr std::uint64_t samples_max = std::uint64_t{1} << 28;

/// The numbers 0 to count - 1 in the order of an epoch: a Fisher-Yates shuffle with random numbers
/// keyed by (seed, epoch). Nearly uniform: the bias of a choice is at most count / 2^32.
std::vector<std::uint32_t> shuffled(std::uint32_t count, std::uint64_t seed, std::uint64_t epoch);

/// Thread-safe. Caches the orders of two epochs, since a microbatch may span two epochs and stages
/// may be a step apart.
class epoch_order {
 public:
  epoch_order(std::uint32_t count, std::uint64_t seed, job::sample_order order);

  /// The samples at `places` positions from `first` on. The first access to an epoch shuffles it,
  /// so it is slower.
  std::vector<std::uint32_t> at(std::uint64_t first, std::uint64_t places) const;

 private:
  const std::uint32_t count_;
  const std::uint64_t seed_;
  const job::sample_order order_;
  mutable simulate::last_steps<std::vector<std::uint32_t>, 2> epochs_;
};

}  // namespace rrfp::data

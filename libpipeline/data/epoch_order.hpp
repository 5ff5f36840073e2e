/// Which sample stands at which place of a run. The places of a run are counted from 0 over all
/// steps; every stretch of `count` of them is an epoch, which holds each sample once.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <rrfp/job/options.hpp>

namespace rrfp::data {

/// More samples are an error of whoever makes an order of them.
inline constexpr std::uint64_t samples_max = std::uint64_t{1} << 28;

/// The numbers 0 to count - 1 in the order of an epoch: Fisher and Yates' shuffle, its choices
/// keyed by (seed, epoch). Nearly uniform: no choice is off by more than count / 2^32.
std::vector<std::uint32_t> shuffled(std::uint32_t count, std::uint64_t seed, std::uint64_t epoch);

/// Thread-safe. Holds the orders of two epochs, for a microbatch may lie across their border and
/// stages may be a step apart.
class epoch_order {
 public:
  epoch_order(std::uint32_t count, std::uint64_t seed, job::sample_order order);

  /// The samples at `places` places from `first` on. Pure but for the time it takes: the first look
  /// into an epoch shuffles it.
  std::vector<std::uint32_t> at(std::uint64_t first, std::uint64_t places) const;

 private:
  using permutation = std::shared_ptr<const std::vector<std::uint32_t>>;

  permutation epoch(std::uint64_t number) const;

  const std::uint32_t count_;
  const std::uint64_t seed_;
  const job::sample_order order_;
  mutable std::mutex guard_;
  /// The one asked for last stands first.
  mutable std::vector<std::pair<std::uint64_t, permutation>> held_;
};

}  // namespace rrfp::data

/// Numbers that one thread writes and any other thread may read at any time.
///
/// All are relaxed atomics: a write costs a few nanoseconds and orders nothing, and values that are
/// read together may come from different moments.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace rrfp::metrics {

/// A monotonic counter.
class counter {
 public:
  void add(std::uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_ = 0;
};

/// A current value.
template <class T>
class gauge {
 public:
  void set(T value) { value_.store(value, std::memory_order_relaxed); }
  T value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<T> value_{};
};

/// A histogram of durations.
class duration_histogram {
 public:
  /// Upper bounds in nanoseconds; one more bucket holds longer durations.
  static constexpr std::array<std::int64_t, 18> bounds{
      10'000,      30'000,        100'000,       300'000,       1'000'000,      3'000'000,
      5'000'000,   10'000'000,    20'000'000,    50'000'000,    100'000'000,    200'000'000,
      500'000'000, 1'000'000'000, 3'000'000'000, 5'000'000'000, 10'000'000'000, 60'000'000'000};

  void observe(std::int64_t nanoseconds) {
    const auto at = std::lower_bound(bounds.begin(), bounds.end(), nanoseconds) - bounds.begin();
    counts_[static_cast<std::size_t>(at)].add();
    sum_.add(static_cast<std::uint64_t>(std::max<std::int64_t>(nanoseconds, 0)));
  }

  /// Count of bucket i alone (not cumulative); i up to bounds.size().
  std::uint64_t count(std::size_t i) const { return counts_[i].value(); }
  /// Sum of all durations, in nanoseconds.
  std::uint64_t sum() const { return sum_.value(); }

 private:
  std::array<counter, bounds.size() + 1> counts_;
  counter sum_;
};

/// The monotonic clock, in nanoseconds.
inline std::int64_t steady_now() {
  return std::chrono::nanoseconds{std::chrono::steady_clock::now().time_since_epoch()}.count();
}

}  // namespace rrfp::metrics

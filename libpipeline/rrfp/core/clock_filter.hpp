/// The offset between two clocks from round trips: NTP's clock filter. A round trip bounds the
/// error of its offset by half its time, so the quickest of the last 64 gives the best offset.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace rrfp::membership_core {

class clock_filter {
 public:
  /// `asked_ns` and `answered_ns` are on this clock, `there_ns` is on the other one.
  void add(std::int64_t asked_ns, std::int64_t there_ns, std::int64_t answered_ns) {
    const auto round_trip = answered_ns - asked_ns;
    if (round_trip < 0) return;
    samples_[count_++ % samples_.size()] = {round_trip, there_ns - (asked_ns + round_trip / 2)};
  }

  std::size_t count() const { return count_; }

  /// Nanoseconds to add to this clock to get the other one; 0 without a sample.
  std::int64_t offset() const {
    if (count_ == 0) return 0;
    const auto end = samples_.begin() + std::min(count_, samples_.size());
    return std::ranges::min_element(samples_.begin(), end, {}, &sample::round_trip)->offset;
  }

 private:
  struct sample {
    std::int64_t round_trip = 0;
    std::int64_t offset = 0;
  };
  std::array<sample, 64> samples_;
  std::size_t count_ = 0;
};

}  // namespace rrfp::membership_core

/// The sequence numbers of an edge that have arrived, in bounded memory for any order.
///
/// If numbers arrive nearly in order, the window holds one word. It grows only over a gap. UCX is
/// reliable, so a number that is still missing after window_max later ones is lost, and the edge
/// can no longer be trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace rrfp::messaging {

class sequence_window {
 public:
  enum class verdict : std::uint8_t { fresh, duplicate, too_far };

  /// Numbers at or beyond the oldest missing one + window_max are too far (rounded down to a word).
  static constexpr std::uint64_t window_max = 65'536;

  verdict take(std::uint64_t sequence) {
    if (sequence < first_) return verdict::duplicate;
    const auto offset = sequence - first_;
    if (offset >= window_max) return verdict::too_far;
    const auto word = offset / 64;
    if (word >= seen_.size()) seen_.resize(word + 1);
    const auto bit = std::uint64_t{1} << (offset % 64);
    if ((seen_[word] & bit) != 0) return verdict::duplicate;
    seen_[word] |= bit;
    while (!seen_.empty() && seen_.front() == ~std::uint64_t{0}) {
      seen_.pop_front();
      first_ += 64;
    }
    return verdict::fresh;
  }

  /// Its memory, at most window_max / 64.
  std::size_t words() const { return seen_.size(); }

 private:
  std::uint64_t first_ = 0;  ///< all smaller numbers have arrived
  std::deque<std::uint64_t> seen_;
};

}  // namespace rrfp::messaging

/// Puts the actor messages of one node back into the order in which they were sent: UCX delivers
/// everything, but a short message may overtake a long one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <rrfp/core/sequence_window.hpp>

namespace rrfp::messaging {

class ordered_inbox {
 public:
  using verdict = sequence_window::verdict;

  /// A message this far beyond the oldest missing one is too far: that one is lost.
  static constexpr std::uint64_t ahead_max = 4096;

  verdict judge(std::uint64_t sequence) const {
    if (sequence < next_ || waiting_.contains(sequence)) return verdict::duplicate;
    return sequence - next_ < ahead_max ? verdict::fresh : verdict::too_far;
  }

  /// Whether a fresh message may wait here: together, all that waits has at most `bytes_max`. The
  /// oldest missing one does not wait.
  bool has_room(std::uint64_t sequence, std::uint64_t bytes, std::uint64_t bytes_max) const {
    return sequence == next_ || (bytes <= bytes_max && waiting_bytes_ <= bytes_max - bytes);
  }

  /// Takes a fresh message. Returns the messages that can be delivered in order now.
  std::vector<std::string> take(std::uint64_t sequence, std::string bytes) {
    waiting_bytes_ += bytes.size();
    waiting_.emplace(sequence, std::move(bytes));
    std::vector<std::string> due;
    for (auto first = waiting_.begin(); first != waiting_.end() && first->first == next_; ++next_) {
      waiting_bytes_ -= first->second.size();
      due.push_back(std::move(first->second));
      first = waiting_.erase(first);
    }
    return due;
  }

 private:
  std::uint64_t next_ = 0;
  std::map<std::uint64_t, std::string> waiting_;
  std::uint64_t waiting_bytes_ = 0;
};

}  // namespace rrfp::messaging

/// How the ranks of a stage reach each other when they are not threads of one process: messages
/// from rank to rank, told apart by sender and tag. The transport implements it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <rrfp/schedule/ids.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp::tp_coord {

/// One thread sends and receives; close() may be called from any other.
class rank_channel {
 public:
  virtual ~rank_channel() = default;

  virtual rank_id rank() const = 0;
  virtual std::uint32_t size() const = 0;

  /// `bytes` may change as soon as it returns. Must not wait until `to` receives: all ranks send
  /// before any of them receives. A tag is used once for each pair of ranks and direction.
  virtual status send(rank_id to, std::uint64_t tag, std::span<const std::byte> bytes) = 0;

  /// Waits for the message of that sender and tag, which may have come long before. Returns its
  /// length, or nothing if it does not come within `limit`. Error: the message is longer than
  /// `into`, the sender is lost, the channel is closed.
  virtual result<std::optional<std::size_t>> receive(rank_id from, std::uint64_t tag,
                                                     std::span<std::byte> into,
                                                     std::chrono::milliseconds limit) = 0;

  /// Every receive of any rank that waits for a message that is not here ends with an error that
  /// holds `why`, and so does every later one. Messages that are here can still be had.
  virtual void close(const std::string& why) = 0;
};

}  // namespace rrfp::tp_coord

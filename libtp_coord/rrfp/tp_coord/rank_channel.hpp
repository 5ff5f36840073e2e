/// Messages between the ranks of a stage that are not threads of one process, identified by sender
/// and tag. The transport implements this interface.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>

namespace rrfp::tp_coord {

/// One thread sends and receives; any thread may call close().
class rank_channel {
 public:
  virtual ~rank_channel() = default;

  virtual rank_id rank() const = 0;
  virtual std::uint32_t size() const = 0;

  /// `bytes` may change as soon as the call returns. Must not wait for `to` to receive: all ranks
  /// send before any of them receives. A tag is used once for each pair of ranks and direction.
  virtual status send(rank_id to, std::uint64_t tag, std::span<const std::byte> bytes) = 0;

  /// Waits for the message with this sender and tag, which may have arrived earlier. Returns its
  /// length, or nothing if it does not arrive within `limit`. Errors: the message is longer than
  /// `into`, the sender is lost, the channel is closed.
  virtual result<std::optional<std::size_t>> receive(rank_id from, std::uint64_t tag,
                                                     std::span<std::byte> into,
                                                     std::chrono::milliseconds limit) = 0;

  /// Ends every current and later receive, on any rank, whose message has not arrived, with an
  /// error that contains `why`. Messages that have arrived can still be received.
  virtual void close(const std::string& why) = 0;
};

}  // namespace rrfp::tp_coord

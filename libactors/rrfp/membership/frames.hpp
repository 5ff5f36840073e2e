/// Frames: length, type, payload. Converts bytes to frames and back without a socket (see
/// channel.hpp), so that tests can feed it random bytes in a loop.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <rrfp/base/result.hpp>

#include "wire.hpp"

namespace rrfp::actors::control {

/// Turns received bytes into frames. After an error it returns only that error.
class frame_reader {
 public:
  void append(std::string_view bytes) { buffer_.append(bytes); }
  /// Empty while a frame is incomplete. A length over the limit is an error before its bytes
  /// arrive.
  result<std::optional<frame>> next();
  /// Lets the next frames be as large as those of an accepted node.
  void accept_large() { size_max_ = frame_bytes_max; }

 private:
  std::string buffer_;
  std::size_t read_ = 0;  ///< bytes of buffer_ already returned as frames
  std::size_t size_max_ = early_frame_bytes_max;
  std::string failure_;
};

/// The frames to write: an urgent queue, and an ordered queue that includes bulk data, which a
/// heartbeat can overtake.
class outbox {
 public:
  /// Sent before the ordered queue: handshake, heartbeats, a loss.
  void add_urgent(frame f) { urgent_.push_back(std::move(f)); }
  /// Sent after all bulk data added before.
  void add(frame f) { ordered_.push_back({std::move(f), nullptr, 0, 0}); }
  /// Sent as pieces of exchange `round`.
  void add_bulk(std::uint64_t round, std::shared_ptr<const std::string> bytes);

  /// The frame to write now; empty if there is none. Its bytes stay valid until pop().
  std::string_view front();
  void pop() { current_.clear(); }
  bool empty() const { return current_.empty() && urgent_.empty() && ordered_.empty(); }
  std::size_t urgent_frames() const { return urgent_.size(); }

 private:
  struct entry {
    frame whole;                              ///< unused for bulk data
    std::shared_ptr<const std::string> bulk;  ///< if set, sent in pieces
    std::uint64_t round;
    std::size_t offset;
  };

  frame next_ordered();

  // std::list: an empty std::deque allocates, and every unauthenticated connection has these
  // queues.
  std::list<frame> urgent_;
  std::list<entry> ordered_;
  std::string current_;
};

template <class Message>
frame to_frame(const Message& message) {
  return {Message::type, encoded(message)};
}

/// Encodes the message that the variant holds.
frame to_frame(const any_message& m);
/// The message of a frame, or malformed.
any_message to_message(const frame& f);

std::string to_bytes(const frame& f);

}  // namespace rrfp::actors::control

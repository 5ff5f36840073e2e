/// Frames: length, type, payload and, after the handshake, a seal. Converts bytes to frames and
/// back without a socket (see channel.hpp), so that tests can feed it random bytes in a loop.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <rrfp/base/result.hpp>

#include "secret.hpp"
#include "wire.hpp"

namespace rrfp::actors::control {

struct frame {
  std::uint8_t type = 0;
  std::string payload;
};

/// One direction of a sealed connection: an HMAC over the frame's number and its bytes. A changed,
/// omitted, repeated or reflected frame does not match.
class seal {
 public:
  explicit seal(secret key) : key_(std::move(key)) {}
  digest next(std::string_view bytes);

 private:
  secret key_;
  std::uint64_t number_ = 0;
};

/// Turns received bytes into frames. After an error it returns only that error.
class frame_reader {
 public:
  void append(std::string_view bytes) { buffer_.append(bytes); }
  /// Empty while a frame is incomplete. A length over the limit is an error before its bytes
  /// arrive.
  result<std::optional<frame>> next();
  /// From the next frame on, frames are sealed.
  void expect_seal(secret key) { seal_.emplace(std::move(key)); }

 private:
  error fail(std::string message);

  std::string buffer_;
  std::size_t read_ = 0;  ///< bytes of buffer_ already returned as frames
  std::optional<seal> seal_;
  std::string failure_;
};

/// The frames to write: an urgent queue, and an ordered queue that includes bulk data. Frames are
/// numbered and sealed when they are written, so a heartbeat can overtake bulk data.
class outbox {
 public:
  /// Urgent frames added before this call are sent without a seal.
  void seal_with(secret key);
  /// Sent before the ordered queue: handshake, heartbeats, a loss.
  void add_urgent(frame f) { urgent_.push_back(std::move(f)); }
  /// Sent after all bulk data added before.
  void add(frame f) { ordered_.push_back({std::move(f), nullptr, 0, 0, 0}); }
  /// Sent as frames of `type`: piece or deposit.
  void add_bulk(std::uint8_t type, std::uint64_t round, std::uint32_t node,
                std::shared_ptr<const std::string> bytes);

  /// Bytes to write now; empty if there are none. They stay valid until taken().
  std::string_view front();
  void taken(std::size_t bytes);
  bool empty() const { return current_.empty() && urgent_.empty() && ordered_.empty(); }
  std::size_t urgent_frames() const { return urgent_.size(); }

 private:
  struct entry {
    frame whole;                              ///< for bulk data only the type
    std::shared_ptr<const std::string> bulk;  ///< if set, sent in pieces
    std::uint64_t round;
    std::uint32_t node;
    std::size_t offset;
  };

  frame next_ordered();

  std::deque<frame> urgent_;
  std::deque<entry> ordered_;
  std::string current_;
  std::size_t written_ = 0;  ///< bytes of current_ already written
  std::optional<seal> seal_;
};

template <class Message>
frame to_frame(const Message& message) {
  return {Message::type, encode(message)};
}

/// Of whatever message it holds.
frame to_frame(const any_message& m);
/// The message of a frame, or malformed.
any_message to_message(const frame& f);

/// The bytes of a frame that has no seal.
std::string open_bytes(const frame& f);

}  // namespace rrfp::actors::control

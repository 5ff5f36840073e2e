/// Frames: length, type, payload and, once both sides know each other, a seal. Bytes in, frames out
/// and the reverse; no socket (channel.hpp has it), so that garbage can be tried on it in a loop.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <rrfp/schedule/result.hpp>

#include "secret.hpp"
#include "wire.hpp"

namespace rrfp::actors::control {

struct frame {
  frame_type type{};
  std::string payload;
};

/// One direction of a sealed connection: an HMAC over a running number and the frame. A frame that
/// was changed, left out, repeated or sent back to its sender does not fit.
class seal {
 public:
  explicit seal(secret key) : key_(std::move(key)) {}
  digest of_next(std::string_view bytes);

 private:
  secret key_;
  std::uint64_t number_ = 0;
};

/// Takes bytes as they come off the wire and gives frames. After an error it gives that error only.
class frame_reader {
 public:
  void append(std::string_view bytes) { buffer_.append(bytes); }
  /// Nothing while a frame is incomplete. A length over the limit is an error before its bytes
  /// come.
  result<std::optional<frame>> next();
  /// From the next frame on, frames are sealed.
  void expect_seal(secret key) { seal_.emplace(std::move(key)); }

 private:
  error fail(std::string what);

  std::string buffer_;
  std::size_t read_ = 0;  ///< of buffer_, bytes that were given out
  std::optional<seal> seal_;
  std::string failure_;
};

/// What waits to be written: small frames that must not wait, and an ordered lane with bulk data in
/// it. Frames are made (numbered, sealed) when the wire takes them, so a heartbeat overtakes bulk
/// data.
class outbox {
 public:
  /// What was added urgently before this goes without a seal.
  void seal_with(secret key);
  /// Ahead of the ordered lane: challenge and answer, heartbeats, a loss.
  void add_urgent(frame f) { urgent_.push_back(std::move(f)); }
  /// After all bulk data that was added before.
  void add(frame f) { ordered_.push_back({std::move(f), nullptr, 0, 0, 0}); }
  /// In frames of type `as`: piece or deposit.
  void add_bulk(frame_type as, std::uint64_t round, std::uint32_t rank,
                std::shared_ptr<const std::string> bytes);

  /// Bytes to write now; empty if there are none. They stand until taken().
  std::string_view front();
  void taken(std::size_t bytes);
  bool empty() const { return current_.empty() && urgent_.empty() && ordered_.empty(); }
  std::size_t urgent_frames() const { return urgent_.size(); }

 private:
  struct entry {
    frame whole;                              ///< of bulk: its type alone
    std::shared_ptr<const std::string> bulk;  ///< if any, sent in pieces
    std::uint64_t round;
    std::uint32_t rank;
    std::size_t offset;
  };

  frame next_ordered();

  std::deque<frame> urgent_;
  std::deque<entry> ordered_;
  std::string current_;
  std::size_t written_ = 0;  ///< of current_
  std::optional<seal> seal_;
};

template <class Message>
frame to_frame(const Message& message) {
  return {Message::type, encode(message)};
}

/// The bytes of a frame that has no seal.
std::string open_bytes(const frame& f);

}  // namespace rrfp::actors::control

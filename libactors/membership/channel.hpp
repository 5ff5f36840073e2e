/// Frames over one connected non-blocking socket, and the time of the last bytes received.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include <rrfp/base/result.hpp>

#include "frames.hpp"
#include "sockets.hpp"

namespace rrfp::actors::control {

using clock = std::chrono::steady_clock;

class channel {
 public:
  explicit channel(file_descriptor fd);

  int fd() const { return fd_.get(); }
  outbox& out() { return out_; }
  const outbox& out() const { return out_; }
  frame_reader& in() { return in_; }
  template <class Message>
  void send(const Message& message) {
    out_.add_urgent(to_frame(message));
  }

  /// Reads the available bytes, 256 KiB at most. An error means that the connection ended; its text
  /// is for the user. Read the frames received before the end first.
  status receive();
  /// Writes as much as the socket accepts.
  status flush();
  /// Ends writing: the other side reads all that was written, then an end of file.
  void end_writing();
  /// Reads and discards; false at the end of the connection.
  bool discard();

  /// Time of the last bytes received; before any, the time of the connection.
  clock::time_point last_received() const { return last_received_; }
  /// This process was stalled for `late`: that time does not count as silence of the other side.
  void discount_stall(clock::duration late) {
    last_received_ = std::min(last_received_ + late, clock::now());
  }
  const address& other_side() const { return other_side_; }

 private:
  file_descriptor fd_;
  address other_side_;
  frame_reader in_;
  outbox out_;
  clock::time_point last_received_;
};

}  // namespace rrfp::actors::control

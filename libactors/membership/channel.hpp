/// Frames over one connected socket that never blocks, and when the other side was last heard.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include <rrfp/schedule/result.hpp>

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
  void say(const Message& message) {
    out_.add_urgent(to_frame(message));
  }

  /// Takes what is there, 256 KiB at most. An error is the end of the connection, worded for a
  /// message. Frames that came before the end are to be read first.
  status receive();
  /// Writes what the socket takes.
  status flush();
  /// No more will be written; the other side reads all that was, then an end of file.
  void end_writing();
  /// Reads and forgets; false at the end of the connection.
  bool discard();

  /// Of the last bytes that came, or of the connection.
  clock::time_point last_heard() const { return last_heard_; }
  /// This process was not looking for so long: the silence is its own.
  void forgive(clock::duration late) { last_heard_ = std::min(last_heard_ + late, clock::now()); }
  const address& other_side() const { return other_side_; }

 private:
  file_descriptor fd_;
  address other_side_;
  frame_reader in_;
  outbox out_;
  clock::time_point last_heard_;
};

}  // namespace rrfp::actors::control

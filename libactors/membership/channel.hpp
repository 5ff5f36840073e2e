/// Frames over one connected non-blocking socket.
#pragma once

#include <rrfp/base/result.hpp>

#include "frames.hpp"
#include "sockets.hpp"

namespace rrfp::actors::control {

class channel {
 public:
  explicit channel(file_descriptor fd);

  int fd() const { return fd_.get(); }
  outbox& out() { return out_; }
  const outbox& out() const { return out_; }
  frame_reader& in() { return in_; }

  /// Reads the available bytes, 256 KiB at most. An error means that the connection ended; its text
  /// is for the user. Read the frames received before the end first. Whether any bytes came.
  result<bool> receive();
  /// Writes as much as the socket accepts.
  status flush();
  /// Ends writing: the other side reads all that was written, then an end of file.
  void end_writing();
  /// Reads and discards; false at the end of the connection.
  bool discard();

  const address& other_side() const { return other_side_; }

 private:
  file_descriptor fd_;
  address other_side_;
  frame_reader in_;
  outbox out_;
};

}  // namespace rrfp::actors::control

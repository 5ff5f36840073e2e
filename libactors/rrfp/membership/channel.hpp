/// Frames inside TLS over one connected non-blocking socket.
#pragma once

#include <optional>
#include <string>

#include "frames.hpp"
#include "sockets.hpp"
#include "tls.hpp"

#include <poll.h>

namespace rrfp::actors::control {

class channel {
 public:
  /// What has come, and why nothing more will.
  struct arrival {
    bool any = false;  ///< on a connection without TLS: all of its opening
    tls::end ended = tls::end::none;
    std::string why{};  ///< of closed
  };

  explicit channel(file_descriptor fd);

  /// Begins TLS as this node; without one as node 0, once receive() has found the opening of TLS.
  void begin_tls(const tls_context& context, secret psk, std::optional<node_id> self = {});
  bool has_tls() const { return tls_.has_value(); }
  /// The TLS handshake is complete: the other side has the key.
  bool is_secure() const { return secure_; }
  std::optional<node_id> named() const { return tls_ ? tls_->named() : std::nullopt; }

  /// What poll() waits for; a negative descriptor: nothing.
  pollfd polled() const;
  outbox& out() { return out_; }
  const outbox& out() const { return out_; }
  frame_reader& in() { return in_; }

  /// Reads the available bytes, 256 KiB at most. Read the frames received before the end first.
  arrival receive();
  /// Writes as much as the socket accepts.
  status flush();
  /// Sends this as the last frame, in clear text to a stranger without TLS, and ends writing. The
  /// frames that wait are not sent.
  void refuse(const frame& last);
  /// Ends writing and TLS: the other side reads all that was written, then an end of file.
  void end_writing();
  /// Reads and discards; false at the end of the connection.
  bool discard();

  const address& other_side() const { return other_side_; }

 private:
  arrival receive_opening();

  file_descriptor fd_;
  address other_side_;
  frame_reader in_;
  outbox out_;
  std::string opening_;  ///< until TLS begins
  std::optional<tls> tls_;
  bool secure_ = false;
};

}  // namespace rrfp::actors::control

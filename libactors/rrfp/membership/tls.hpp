/// TLS 1.3 on a connected non-blocking socket, with the key of the job as external PSK
/// (psk_dhe_ke, no certificates): whoever completes the handshake has the key. OpenSSL reads and
/// writes the socket through functions of this file, which raise no SIGPIPE and limit the bytes of
/// a turn.
///
/// The identity of the PSK names the node, in clear text, so that a refusal can say which node it
/// was. The number is not verified; only the claim counts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <rrfp/base/ids.hpp>

#include "secret.hpp"

struct ssl_st;
struct ssl_ctx_st;
struct ssl_session_st;

namespace rrfp::actors::control {

/// What the connections of one side have in common.
class tls_context {
 public:
  enum class side : std::uint8_t { node, node_0 };
  explicit tls_context(side s);

 private:
  friend class tls;
  struct deleter {
    void operator()(ssl_ctx_st* c) const;
  };
  std::unique_ptr<ssl_ctx_st, deleter> context_;
};

/// How many of the first bytes of a connection decide whether TLS begins.
inline constexpr std::size_t opening_bytes = 9;
/// Whether these bytes may open a TLS connection: a record with a ClientHello of limited size. Gets
/// at most `opening_bytes`, so that an unauthenticated peer cannot make us allocate.
bool may_open_tls(std::string_view bytes);

class tls {
 public:
  enum class end : std::uint8_t {
    none,
    closed,   ///< by the other side, or `error_number()`
    strange,  ///< the peer does not speak TLS
    refused,  ///< the other side does not accept the key
    invalid,  ///< the other side does not have the key
  };

  /// `self`: opens the side of this node; nothing: that of node 0. `opening`: the bytes already
  /// read.
  tls(const tls_context& context, int fd, secret psk, std::optional<node_id> self,
      std::string opening);
  tls(const tls&) = delete;
  tls& operator=(const tls&) = delete;

  /// Begins a turn, in which at most this many bytes are read from the socket.
  void allow(std::size_t bytes) { allowed_ = bytes; }
  /// True once it is complete. False: it waits for the socket, or has ended.
  bool shake_hands();
  /// The number of bytes read; 0: nothing has come, or the connection has ended.
  std::size_t read(std::span<char> into);
  /// Whether all was written. False: call again with the same bytes, or the connection has ended.
  bool write(std::string_view bytes);
  /// Whether it waits until the socket accepts bytes.
  bool waits_to_write() const;

  end ended() const { return end_; }
  int error_number() const { return error_number_; }
  /// On node 0: the node that the other side claims to be in the identity of its PSK.
  std::optional<node_id> named() const { return named_; }

 private:
  friend class tls_context;
  struct deleter {
    void operator()(ssl_st* s) const;
  };
  struct callbacks;  ///< of OpenSSL

  bool succeeded(int returned);
  void close(int number);
  ssl_session_st* session() const;

  const int fd_;
  const secret psk_;
  std::string opening_;         ///< not yet passed to OpenSSL
  const std::string identity_;  ///< of a node
  std::optional<node_id> named_;
  std::size_t allowed_ = 0;
  bool complete_ = false;  ///< the handshake
  end end_ = end::none;
  int error_number_ = 0;
  std::unique_ptr<ssl_st, deleter> ssl_;
};

}  // namespace rrfp::actors::control

/// Both sides of the handshake that decides who may join, without a socket. WIRE.md describes it.
///
///   node                                   node 0
///   hello(nonce)            ->
///                           <-  challenge(nonce)
///   claim(job, node, proof) ->
///                           <-  accept(proof)  or  refuse(reason)
///
/// A proof is an HMAC over the sender's role, the whole claim and both nonces. Each side chooses a
/// fresh nonce, so a recorded proof is never valid again. A node that does not prove the key learns
/// only "key refused".
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>

#include "frames.hpp"

namespace rrfp::actors::control {

/// From the connection to the accept.
inline constexpr std::chrono::seconds handshake_max{5};

/// The keys of one connection, one for each direction.
struct session_keys {
  secret to_node_0;
  secret from_node_0;
};

/// Node 0's side of one connection.
class server_handshake {
 public:
  struct verdict {
    enum class step { more, admitted, refused };
    step next = step::more;
    frame answer;
    std::string reason;  ///< why it was refused
  };
  /// Why a node number is not available now ("node 2 has already joined"); empty if it is.
  using availability_check = std::function<std::string(node_id)>;

  /// Both must outlive this.
  server_handshake(const secret& key, const job_identity& job) : key_(key), job_(job) {}

  /// Error: no random nonce is available.
  result<verdict> handle(const frame& f, const availability_check& check);
  /// The node number of the claim; verified only once admitted.
  std::optional<node_id> claimed() const { return node_; }
  session_keys keys() const;

 private:
  static verdict refused(std::string reason, bool for_now = false);
  verdict check_claim(const claim& c, const availability_check& check);

  const secret& key_;
  const job_identity& job_;
  std::optional<hello> hello_;
  std::optional<challenge> challenge_;
  std::optional<node_id> node_;
};

/// A node's side.
class client_handshake {
 public:
  client_handshake(const secret& key, const job_identity& job, node_id node, const nonce& random)
      : key_(key), job_(job), node_(node), hello_{.random = random} {}

  frame greeting() const { return to_frame(hello_); }
  /// The frame to send; nothing once this side is accepted and has verified the proof of node 0.
  /// Error: a refusal by either side, or an unexpected message; do not retry.
  result<std::optional<frame>> handle(const frame& f);
  /// Whether a later attempt may succeed after this refusal.
  bool refused_for_now() const { return refused_for_now_; }
  session_keys keys() const;

 private:
  const secret& key_;
  const job_identity& job_;
  const node_id node_;
  const hello hello_;
  std::optional<challenge> challenge_;
  bool refused_for_now_ = false;
};

/// The text of another process as one printable line of limited length.
std::string printable(const std::string& text, std::size_t bytes_max = reason_bytes_max);

}  // namespace rrfp::actors::control

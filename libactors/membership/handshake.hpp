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

#include <optional>
#include <string>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/membership_core/common.hpp>

#include "frames.hpp"

namespace rrfp::actors::control {

/// The keys of one connection, one for each direction.
struct session_keys {
  secret to_node_0;
  secret from_node_0;
};

/// What a side says to a frame of the other one.
struct verdict {
  enum class step : std::uint8_t { more, proven, refused };
  step next = step::more;
  frame answer{};        ///< of step more
  std::string reason{};  ///< why it was refused
  bool for_now = false;  ///< a later attempt may succeed after this refusal
};

/// Node 0's side of one connection.
class server_handshake {
 public:
  /// Both must outlive this.
  server_handshake(const secret& key, const job_identity& job) : key_(key), job_(job) {}

  /// Error: no random nonce is available.
  result<verdict> handle(const frame& f);
  /// The node number of the claim; verified only once proven.
  std::optional<node_id> claimed() const { return node_; }
  /// The answer to a proven node that is admitted.
  frame acceptance() const;
  session_keys keys() const;

 private:
  verdict check_claim(const claim& c);

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
  std::optional<node_id> claimed() const { return node_id{0}; }
  /// Proven: this side is accepted and has verified the proof of node 0. Refused: by either side,
  /// or an unexpected message.
  result<verdict> handle(const frame& f);
  session_keys keys() const;

 private:
  const secret& key_;
  const job_identity& job_;
  const node_id node_;
  const hello hello_;
  std::optional<challenge> challenge_;
};

}  // namespace rrfp::actors::control

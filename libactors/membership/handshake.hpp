/// Who may join: both sides of the handshake, without a socket. WIRE.md tells it step by step.
///
///   node                                   rank 0
///   hello(nonce)            ->
///                           <-  challenge(nonce)
///   claim(job, rank, proof) ->
///                           <-  accept(proof)  or  refuse(reason)
///
/// A proof is an HMAC over who speaks, all that is claimed and both nonces. Either side has given a
/// fresh nonce, so a recorded proof fits no second time. Only who has proven the key hears more
/// than "key refused".
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <rrfp/schedule/ids.hpp>
#include <rrfp/schedule/result.hpp>

#include "frames.hpp"

namespace rrfp::actors::control {

/// Of a connection, one for each direction.
struct session_keys {
  secret to_rank_0;
  secret from_rank_0;
};

/// Rank 0's side of one connection.
class doorkeeper {
 public:
  struct verdict {
    enum class step { more, admitted, refused };
    step next = step::more;
    frame answer;
    std::string reason;  ///< of a refusal
  };
  /// Why a rank cannot be had now ("node 2 is there already"); empty if it can.
  using seat_check = std::function<std::string(node_id)>;

  /// Both must outlive this.
  doorkeeper(const secret& key, const job_identity& job) : key_(key), job_(job) {}

  /// An error if there is no random nonce to be had.
  result<verdict> on(const frame& f, const seat_check& seat);
  /// Said by the claim, true once admitted.
  std::optional<node_id> claimed() const { return rank_; }
  session_keys keys() const;

 private:
  static verdict refused(std::string reason, bool for_now = false);
  verdict judge(const claim& c, const seat_check& seat);

  const secret& key_;
  const job_identity& job_;
  std::optional<hello> hello_;
  std::optional<challenge> challenge_;
  std::optional<node_id> rank_;
};

/// A node's side.
class applicant {
 public:
  applicant(const secret& key, const job_identity& job, node_id rank, const nonce& random)
      : key_(key), job_(job), rank_(rank), hello_{.random = random} {}

  frame greeting() const { return to_frame(hello_); }
  /// What to send, nothing when this side is accepted and has seen rank 0's proof. An error is a
  /// refusal, by either side, or a message that has no place here: not worth another try.
  result<std::optional<frame>> on(const frame& f);
  /// Whether a refusal is one that another try later may not meet.
  bool refused_for_now() const { return refused_for_now_; }
  session_keys keys() const;

 private:
  const secret& key_;
  const job_identity& job_;
  const node_id rank_;
  const hello hello_;
  std::optional<challenge> challenge_;
  bool refused_for_now_ = false;
};

/// Text of another process, cut to a line that can be printed.
std::string printable(const std::string& text, std::size_t bytes_max = reason_bytes_max);

}  // namespace rrfp::actors::control

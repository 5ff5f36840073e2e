/// The messages between the nodes of a job once the handshake has proved which node is at the other
/// end, and their limits. The core sees messages; `type` and `fields`, the order on the wire, serve
/// the shell (WIRE.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include <rrfp/base/codec.hpp>
#include <rrfp/base/ids.hpp>

namespace rrfp::membership_core {

/// Identifies one process of a node by a random number. 0: the processes of the job are not fenced,
/// so a lost one may join again.
using process_id = id<struct process_tag, std::uint64_t>;

/// Limits of a job's control plane.
inline constexpr std::uint32_t nodes_max = 4096;
inline constexpr std::size_t description_bytes_max = 1024;
inline constexpr std::size_t status_bytes_max = 256;
/// Size limit of what one node contributes to an exchange, and of its answer.
inline constexpr std::size_t gather_bytes_max = 64 * 1024 * 1024;
/// Size limit of one piece of an exchange; a heartbeat waits for at most one piece.
inline constexpr std::size_t piece_bytes_max = 64 * 1024;
inline constexpr std::size_t name_bytes_max = 256;
inline constexpr std::size_t reason_bytes_max = 2048;
inline constexpr std::size_t host_bytes_max = 64;
/// How many nodes may succeed a leader; more would not be asked before the job gives up.
inline constexpr std::size_t successors_max = 16;

struct introduce {
  static constexpr std::uint8_t type = 16;
  std::string description;
  std::uint16_t port = 0;  ///< where it listens, should it lead; else 0
  /// The nodes that the job had when this process was last a member. Empty: the process is new, or
  /// the job must have all nodes.
  std::vector<std::uint32_t> quorum{};

  friend auto fields(auto f, introduce& x) {
    return f(at_most(x.description, description_bytes_max), x.port, at_most(x.quorum, nodes_max));
  }
};

/// A node that leads if the leader is lost, and where it listens then.
struct successor {
  std::uint32_t node = 0;
  std::string host;
  std::uint16_t port = 0;

  bool operator==(const successor&) const = default;
  friend auto fields(auto f, successor& x) {
    return f(x.node, at_most(x.host, host_bytes_max), x.port);
  }
};

/// All nodes have joined, or enough of them.
struct start {
  static constexpr std::uint8_t type = 18;
  std::string description;                               ///< of the leader
  std::vector<std::uint32_t> absent{};                   ///< the nodes that the job goes on without
  std::vector<membership_core::successor> successors{};  ///< in this order

  friend auto fields(auto f, start& x) {
    return f(at_most(x.description, description_bytes_max), at_most(x.absent, nodes_max),
             at_most(x.successors, successors_max));
  }
};

/// The sender, a leader in the place of node 0, has only asked whether node 0 is there again.
struct inquiry {
  static constexpr std::uint8_t type = 21;
  friend auto fields(auto f, inquiry&) { return f(); }
};

/// Node 0 is there again: after the running step, all join it.
struct leader_returns {
  static constexpr std::uint8_t type = 22;
  friend auto fields(auto f, leader_returns&) { return f(); }
};

/// All nodes have agreed on the end of the job. Node 0 says it to a node that comes later; a node
/// that lost node 0 says it to the next one, instead of its introduction.
struct over {
  static constexpr std::uint8_t type = 20;
  friend auto fields(auto f, over&) { return f(); }
};

struct give_up {
  static constexpr std::uint8_t type = 19;
  std::string reason;

  friend auto fields(auto f, give_up& x) { return f(at_most(x.reason, reason_bytes_max)); }
};

/// A heartbeat of a node to node 0.
struct ping {
  static constexpr std::uint8_t type = 32;
  std::int64_t sent_ns = 0;
  std::string status;

  friend auto fields(auto f, ping& x) { return f(x.sent_ns, at_most(x.status, status_bytes_max)); }
};

/// The answer of node 0, and its heartbeat.
struct pong {
  static constexpr std::uint8_t type = 33;
  std::int64_t ping_sent_ns = 0;  ///< on the clock of the sender of the ping
  std::int64_t here_ns = 0;       ///< on the clock of node 0
  std::string status;

  friend auto fields(auto f, pong& x) {
    return f(x.ping_sent_ns, x.here_ns, at_most(x.status, status_bytes_max));
  }
};

struct lost {
  static constexpr std::uint8_t type = 34;
  std::uint32_t node = 0;
  std::string why;

  friend auto fields(auto f, lost& x) { return f(x.node, at_most(x.why, reason_bytes_max)); }
};

struct goodbye {
  static constexpr std::uint8_t type = 36;
  friend auto fields(auto f, goodbye&) { return f(); }
};

/// A part of the bytes that a node contributes to exchange `round`, or of the answer of node 0 to
/// it; sent in order.
struct piece {
  static constexpr std::uint8_t type = 48;
  std::uint64_t round = 0;
  std::uint64_t bytes_total = 0;
  std::string bytes;

  friend auto fields(auto f, piece& x) {
    return f(x.round, x.bytes_total, at_most(x.bytes, piece_bytes_max));
  }
};

/// The running exchange has failed on node 0: there is none any more.
struct no_exchange {
  static constexpr std::uint8_t type = 49;
  std::string why;

  friend auto fields(auto f, no_exchange& x) { return f(at_most(x.why, reason_bytes_max)); }
};

/// A message that is none of these, or not within its limits.
struct malformed {
  static constexpr std::uint8_t type = 0;
  friend auto fields(auto f, malformed&) { return f(); }
};

using any_message = std::variant<malformed, introduce, start, over, inquiry, leader_returns,
                                 give_up, ping, pong, lost, goodbye, piece, no_exchange>;

}  // namespace rrfp::membership_core

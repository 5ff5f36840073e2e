/// The events that a membership core receives and the actions that it returns, the same for the
/// leader (leader_core), which is node 0 or its successor, and for the others (follower_core).
/// docs/driving-the-core.md says what to do with each action. Times are nanoseconds of a clock that
/// never goes back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/core/membership_messages.hpp>

namespace rrfp::membership_core {

/// Given by the driver, in the order in which connections open; never used twice.
using connection_id = id<struct connection_tag, std::uint32_t>;
using shared_bytes = std::shared_ptr<const std::string>;

/// A node of the job.
struct member {
  node_id node;
  /// Its address as seen by the leader; of the leader, the one at which this node has reached it.
  std::string host;
  std::string description;
  bool is_absent = false;  ///< the job has gone on without it: it contributes nothing
};

namespace event {

/// The leader listens; or a follower, for the case that it must lead.
struct listening {
  std::string address;
  std::string host;
  std::uint16_t port = 0;  ///< where others find this process if the leader is lost; 0: nowhere
};
/// Another node cannot reach the leader. `for_good`: do not try again.
struct unreachable {
  std::string why;
  bool for_good = false;
  bool is_refused = false;  ///< nobody listens there: the process has ended
};
/// A connection was accepted or made; its handshake begins.
struct opened {
  connection_id connection;
  std::string address;  ///< of the other side, for messages
  std::string host;
};
/// The handshake proved which node is at the other end.
struct proven {
  connection_id connection;
  node_id node;
  process_id process{};
  bool again = false;  ///< the process has been a member before
};
/// The handshake failed. `for_now`: a later one may succeed. `lost`: this process was declared
/// lost, so only another process of the node may join.
struct refused {
  connection_id connection;
  std::optional<node_id> node;  ///< as claimed
  std::string reason;
  bool for_now = false;
  bool lost = false;
};
/// Bytes arrived, if only a part of a message.
struct heard {
  connection_id connection;
};
struct received {
  connection_id connection;
  any_message content;
};
/// The bytes from the other side are not valid frames.
struct garbled {
  connection_id connection;
  std::string why;
};
struct closed {
  connection_id connection;
  std::string why;
};
/// Answers examine. `is_gone`: the process has ended, or is stopped for longer than the node
/// timeout: it does not go on with the job.
struct examined {
  node_id node;
  bool is_gone = false;
};
/// Node 0, which was absent, listens.
struct node_0_found {};

// What this process asks for.

/// The bytes of this node for the next exchange.
struct contributed {
  shared_bytes bytes;
  std::int64_t limit = 0;     ///< for the message
  std::int64_t deadline = 0;  ///< the time at which the exchange has failed
  bool last = false;          ///< with it the job is over
};
/// The leader: what it answers to the bytes of all nodes, by node; or one answer for all of them.
struct answered {
  std::vector<shared_bytes> answers;
};
/// Exchanges end, the running one and all later ones.
struct interrupted {};
struct status_set {
  std::string text;
};
struct leave {};
/// The process ends its membership; `reason`: why, if it gives up joining.
struct closing {
  std::string reason;
};

/// poll() has returned; always the first event of an iteration.
struct woke {};
/// All that had arrived is fed. Comes every `core_options::turn()` at least.
struct turn {};

using any = std::variant<listening, unreachable, opened, proven, refused, heard, received, garbled,
                         closed, examined, node_0_found, contributed, answered, interrupted,
                         status_set, leave, closing, woke, turn>;

/// Whether the event is one of these.
template <class... Events>
bool is(const any& e) {
  return (std::holds_alternative<Events>(e) || ...);
}

/// The connection of the event, if it has one.
inline std::optional<connection_id> connection_of(const any& e) {
  return std::visit(
      [](const auto& x) -> std::optional<connection_id> {
        if constexpr (requires { x.connection; }) return x.connection;
        return std::nullopt;
      },
      e);
}

}  // namespace event

namespace action {

/// Connect to the leader at this time; answer with opened or unreachable.
struct connect {
  std::int64_t at = 0;
};
/// Complete the handshake; all that follows is for a member.
struct admit {
  connection_id connection;
};
/// Send the reason as the last message, and discard what comes until the core closes the
/// connection.
struct refuse {
  connection_id connection;
  std::string reason;
  bool for_now = false;
  bool lost = false;
};
struct send {
  std::vector<connection_id> to;
  any_message content;
};
/// Send the bytes in pieces, after all that was sent before.
struct contribute {
  std::vector<connection_id> to;
  std::uint64_t round = 0;
  shared_bytes bytes;
};
/// Write the messages of this event before its next action, which may end the process.
struct write_notices {
  std::vector<connection_id> to;
};
/// Write what the connection takes at once, and close it.
struct close {
  connection_id connection;
};
struct stop_listening {};
/// Find out whether the process of this node, which has not joined, has ended or is stopped; answer
/// with examined.
struct examine {
  node_id node;
};
/// Connect to the rendezvous now and then, and answer with node_0_found.
struct look_for_node_0 {};

// Reports to the process.

/// What the join waits for now.
struct waiting {
  std::string text;
};
struct refused_join {
  std::string line;
};
struct gone_early {
  std::string line;
};
/// `for_now`: a later join may succeed; `elsewhere`: perhaps with another leader.
struct join_failed {
  std::string why;
  bool for_now = false;
  bool elsewhere = false;
};
/// This process was lost: it may not join again.
struct fence {
  process_id process;
};
/// All nodes have agreed on the end of the job, and this one knows.
struct job_over {};
/// To be added to this clock to get that of the leader.
struct clock_offset {
  std::int64_t ns = 0;
};
/// `members`: on the leader all nodes, by number; on the others the leader alone.
struct joined {
  std::vector<member> members;
  std::vector<node_id> absent{};
  std::vector<successor> successors{};  ///< of the leader
};
/// On the leader: the job has gone on without this node, and a process that takes its place waits.
struct node_waits {
  node_id node;
};
/// All join node 0 next, which was absent.
struct leader_returns {};
/// At most once. Not after leave.
struct lost {
  node_id node;
  std::string message;
  bool is_silent = false;  ///< it may still be there
};
/// The process may end once all messages are written.
struct left {};
/// The bytes of an exchange. On the leader those of all nodes, by number: it answers them with
/// `answered`. On the others the answer.
struct exchanged {
  std::vector<shared_bytes> all;
};
struct exchange_failed {
  error why;
};

using any = std::variant<connect, admit, refuse, send, contribute, write_notices, close,
                         stop_listening, examine, look_for_node_0, waiting, refused_join,
                         gone_early, join_failed, fence, job_over, clock_offset, joined, node_waits,
                         leader_returns, lost, left, exchanged, exchange_failed>;

}  // namespace action

}  // namespace rrfp::membership_core

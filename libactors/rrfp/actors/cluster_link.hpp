/// What connects the nodes of one run: the transport. The nodes exchange what they need to connect
/// over their control connections.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <rrfp/actors/control/directory.hpp>
#include <rrfp/actors/session.hpp>
#include <rrfp/transport/ucx_transport.hpp>

#include "hosted_parts.hpp"

namespace rrfp::actors {

using rank_places = std::map<std::pair<stage_id, rank_id>, node_id>;

class cluster_link {
 public:
  struct opened {
    std::unique_ptr<cluster_link> link;
    /// Reaches every rank of the job; the routes are set.
    std::unique_ptr<transport> wire;
    /// The node that holds the second copy of each rank of this node, for recovery.
    rank_places buddies;
    /// Which side of a tied parameter a stage holds, of all stages that hold one.
    std::map<stage_id, compute::tie> sides;
    /// When the run began on node 0, on this node's clock.
    std::chrono::steady_clock::time_point start;
    /// What the processes have told each other (session_setup::tell).
    std::vector<std::string> told;
  };

  /// Blocks until every node has made its parts and opened its transport, for reading_time_max at
  /// most. `hosted`: what this node has made; `text`: what it tells the others, or why it could
  /// not make its parts. The error is the same on all nodes: a node could not make its parts or
  /// open its transport, a parameter of the checkpoint has no place, a node was lost, or it did not
  /// answer in time.
  static result<opened> open(const cluster& in_cluster, const session_setup& setup,
                             const hosted_parts& hosted, const result<std::string>& text);

  /// Connects the groups of ranks that span nodes.
  void attach(rank_groups& groups) { groups.attach(wire_); }
  /// One line for the user: the transports that UCX chose, and, if ranks here have device memory,
  /// whether that is sent directly.
  std::string transports(bool has_device_memory) const;
  /// Only while the transport exists.
  messaging::transport_counts count() const;
  /// Sends messages to actors of other nodes; see directory.hpp.
  directory::send_function actor_message_sender() const {
    return std::bind_front(&ucx_transport::send_actor_message, &wire_);
  }
  /// Gives the actor messages of other nodes to `actors`, which must outlive the transport. Waits
  /// until every node has called this: then all actors of all nodes are bound. The error is the
  /// same on all nodes: a node cannot reach another one, was lost, or did not answer in time.
  status meet(const directory& actors);
  /// Posts node_lost and suspected to `watcher` from now on, also for nodes lost earlier.
  /// Null: no actor receives them. In any case the transport waits no longer for a lost node.
  void watch(const caf::actor& watcher);
  /// Before the transport is destroyed.
  void end_watch() { cluster_.members->on_lost(nullptr); }
  /// Whether the transport has lost the connection to another node.
  bool has_lost_connections() const { return has_lost_connections_; }
  /// Waits until the other nodes have ended too, and gathers all traces on node 0. Returns, on
  /// node 0, what is missing in `trace` and why; empty: nothing is missing.
  std::string finish(trace_recorder* trace);

 private:
  cluster_link(const cluster& in_cluster, ucx_transport& wire, std::chrono::milliseconds limit);
  void report_unreachable(node_id node, const std::string& why);

  const cluster& cluster_;
  ucx_transport& wire_;
  const std::chrono::milliseconds limit_;
  /// Whether this node could connect to all others.
  status connected_ = success();
  std::atomic<bool> has_lost_connections_ = false;
  std::mutex mutex_;
  caf::actor watcher_;
  std::string unreachable_;  ///< what was reported before there was a watcher; empty: nothing
};

}  // namespace rrfp::actors

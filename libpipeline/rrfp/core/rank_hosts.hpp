/// Where the ranks of a job run, also after the loss of nodes, and where the copies of their state
/// are held. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <rrfp/base/ids.hpp>

namespace rrfp {

/// Which nodes host the ranks of a job, and how it goes on without some of them.
struct rank_hosts {
  std::vector<node_id> nodes;  ///< of all ranks, those of each replica after another
  std::size_t ranks_of_replica = 0;
  /// Nodes that host no rank until one is absent.
  std::vector<node_id> spares{};
  /// A node that has a rank in one replica may run the same rank of another replica, too.
  bool reroutes = false;

  bool may_lack_nodes() const { return reroutes || !spares.empty(); }
  /// The nodes of all ranks while some nodes are absent. A spare takes over all ranks of one absent
  /// node, first of those whose ranks no other node could run. If the job reroutes, each remaining
  /// rank goes to the node with the fewest ranks so far among those that have the same rank in
  /// another replica. Nothing: a rank has no node.
  std::optional<std::vector<node_id>> without(std::span<const node_id> absent) const;
};

/// The node that holds the second copy of what node `owner` computes: a spare, which takes its
/// place first; else one of `replicas`, which compute the same, else a node after the owner; if
/// possible on another host. Nothing: `owner` is the only node. `hosts`: of all nodes; empty: the
/// node is absent.
std::optional<node_id> buddy_of(node_id owner, std::span<const node_id> replicas,
                                std::span<const node_id> spares,
                                std::span<const std::string> hosts);
/// The same for a rank, of which replica 0 is copied; `node_of`: the node of each replica.
std::optional<node_id> buddy_of(std::uint32_t replicas,
                                const std::function<node_id(replica_id)>& node_of,
                                std::span<const node_id> spares,
                                std::span<const std::string> hosts);

}  // namespace rrfp

/// Which nodes of a run send to each other, and so connect: not each node to all others.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include <rrfp/base/ids.hpp>

namespace rrfp::messaging {

class connections {
 public:
  struct run {
    std::uint32_t nodes = 1;
    std::uint32_t stages = 1;
    std::vector<stage_id> path;  ///< the stage of each virtual stage, in the order of the model
    std::uint32_t ranks = 1;
    std::uint32_t replicas = 1;
    std::function<node_id(replica_id, stage_id, rank_id)> node_of;
    node_id leader{0};
  };

  /// Connects the leader, which runs the job actor, with all nodes; the nodes of a stage's ranks
  /// with each other; and the node of a rank with those of its replicas and of the same rank of the
  /// neighbouring stages.
  explicit connections(const run& r);

  /// Both ways. Not of a node with itself.
  void add(node_id a, node_id b);
  /// In the order of their numbers.
  const std::set<node_id>& of(node_id node) const { return peers_[node.value()]; }

 private:
  std::vector<std::set<node_id>> peers_;
};

}  // namespace rrfp::messaging

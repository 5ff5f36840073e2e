/// The node that hosts each rank of a job.
///
/// Ranks communicate most with the other ranks of their stage, and then with the neighbouring
/// stages. They are therefore assigned in the order replica, stage, rank, in contiguous runs that
/// are as even as possible.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/core/rank_hosts.hpp>
#include <rrfp/job/job.hpp>

namespace rrfp::job {

class node_places {
 public:
  /// Follows pipeline.nodes (one node per stage and replica, or one per rank), or splits evenly if
  /// it is empty. The last recovery.spares of several nodes host no rank. Errors: more nodes than
  /// ranks, none but spares, a list of the wrong length, a node that does not exist or hosts no
  /// rank.
  static result<node_places> make(const job& j, std::uint32_t nodes);
  /// The same without these nodes, which hosts() must have a place for.
  node_places without(std::span<const node_id> absent) const;

  std::uint32_t nodes() const { return nodes_; }
  node_id node_of(replica_id replica, stage_id stage, rank_id rank) const;
  /// Whether the two share a device, because one has moved to the node of the other.
  bool share_device(replica_id a, replica_id b, stage_id stage, rank_id rank) const;
  /// The devices of all stages, at replica * stages + stage, for share_planner_options. Empty: all
  /// nodes are there.
  std::vector<std::uint32_t> devices() const;
  const rank_hosts& hosts() const { return hosts_; }
  /// The stages of which a node hosts ranks: "stages 1, 2", "replica 1 stage 0 rank 2", or "spare".
  std::string describe(node_id node) const;

 private:
  std::uint32_t nodes_ = 1;
  std::uint32_t replicas_ = 1;
  std::uint32_t stages_ = 1;
  std::uint32_t ranks_ = 1;
  std::size_t index(replica_id replica, stage_id stage, rank_id rank) const;

  rank_hosts hosts_;             ///< with all nodes
  std::vector<node_id> places_;  ///< by index()
  bool lacks_nodes_ = false;
};

}  // namespace rrfp::job

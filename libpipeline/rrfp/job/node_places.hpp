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
#include <rrfp/job/job.hpp>

namespace rrfp::plan {

class node_places {
 public:
  /// Follows pipeline.nodes (one node per stage and replica, or one per rank), or splits evenly if
  /// it is empty. Errors: more nodes than ranks, a list of the wrong length, a node that does not
  /// exist or hosts no rank.
  static result<node_places> make(const job::job& j, std::uint32_t nodes);
  /// The same without these nodes: each of their ranks is on a node that hosts the rank in another
  /// replica, and has the fewest ranks so far. Each set of stand_ins() must have a node that is
  /// left.
  node_places without(std::span<const node_id> absent) const;

  std::uint32_t nodes() const { return nodes_; }
  node_id node_of(replica_id replica, stage_id stage, rank_id rank) const;
  /// Whether it is there instead of its own node, which is absent.
  bool is_moved(replica_id replica, stage_id stage, rank_id rank) const {
    const auto i = index(replica, stage, rank);
    return !planned_.empty() && places_[i] != planned_[i];
  }
  /// The devices of all stages, at replica * stages + stage, for share_planner_options: a rank that
  /// has moved shares the device of the rank in another replica. Empty: all nodes are there.
  std::vector<std::uint32_t> devices() const;
  /// For each rank of a replica, the nodes that host it in one of the replicas.
  std::vector<std::vector<node_id>> stand_ins() const;
  /// The stages of which a node hosts ranks: "stages 1, 2", "replica 1 stage 0 rank 2".
  std::string describe(node_id node) const;

 private:
  std::uint32_t nodes_ = 1;
  std::uint32_t replicas_ = 1;
  std::uint32_t stages_ = 1;
  std::uint32_t ranks_ = 1;
  std::size_t index(replica_id replica, stage_id stage, rank_id rank) const;

  std::vector<node_id> places_;   ///< by index()
  std::vector<node_id> planned_;  ///< the same with all nodes; empty: no node is absent
};

}  // namespace rrfp::plan

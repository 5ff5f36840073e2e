/// Which node hosts which rank of a job.
///
/// The intuition: ranks talk most to the other ranks of their stage and next to the neighbour
/// stages, so they are dealt out in the order replica, stage, rank, in runs as even as possible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <rrfp/job/job.hpp>
#include <rrfp/schedule/ids.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp::plan {

class node_places {
 public:
  /// As pipeline.nodes says (a node a stage and replica, or a node a rank), else evenly. Errors:
  /// more nodes than ranks, a list of another length, a node that is not there or hosts nothing.
  static result<node_places> make(const job::job& j, std::uint32_t nodes);

  std::uint32_t nodes() const { return nodes_; }
  node_id of(replica_id replica, stage_id stage, rank_id rank) const;
  /// The stages that a node hosts ranks of: "stages 1, 2", "replica 1 stage 0 rank 2".
  std::string describe(node_id node) const;

 private:
  std::uint32_t nodes_ = 1;
  std::uint32_t replicas_ = 1;
  std::uint32_t stages_ = 1;
  std::uint32_t ranks_ = 1;
  std::vector<node_id> places_;  ///< by (replica * stages + stage) * ranks + rank
};

}  // namespace rrfp::plan

/// The groups of ranks that work together: the tensor-parallel ranks of a stage, and the replicas
/// of a rank. Ranks of one process meet in memory, others over the transport, which is not there
/// yet when the groups are made.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <rrfp/actors/transport.hpp>
#include <rrfp/actors/ucx_transport.hpp>
#include <rrfp/tp_coord/collective.hpp>

namespace rrfp::actors {

/// A channel that is made before the transport it goes over. Until then nobody may use it.
class late_channel;

/// What a rank does with others; null where there are no others.
struct rank_collectives {
  std::shared_ptr<tp_coord::collective> stage;     ///< the tensor-parallel ranks of its stage
  std::shared_ptr<tp_coord::collective> replicas;  ///< the same rank of all replicas
};

class rank_groups {
 public:
  /// `limit`: how long a rank waits for the others of a group.
  explicit rank_groups(std::chrono::milliseconds limit) : limit_(limit) {}

  /// Makes the group of `members`, in their order, as far as `is_here` says; gives the part of each
  /// member that is here, null for the others. `id` is the group's own.
  std::vector<std::shared_ptr<tp_coord::collective>> make(std::uint32_t id,
                                                          const std::vector<rank_address>& members,
                                                          const std::vector<bool>& is_here);
  /// From now on the groups that span nodes can be used.
  void attach(ucx_transport& wire);

 private:
  struct pending {
    std::shared_ptr<late_channel> channel;
    channel_group group;
    rank_id own;
  };

  const std::chrono::milliseconds limit_;
  std::vector<pending> pending_;
};

}  // namespace rrfp::actors

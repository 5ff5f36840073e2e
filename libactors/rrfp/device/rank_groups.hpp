/// The groups of ranks that use collectives: the tensor-parallel ranks of a stage, and the replicas
/// of a rank. Ranks of one process communicate through memory, others over the transport, which
/// does not exist yet when the groups are made.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include <rrfp/tp_coord/collective.hpp>
#include <rrfp/transport/transport.hpp>
#include <rrfp/transport/ucx_transport.hpp>

namespace rrfp::actors {

/// A channel that is made before its transport. It must not be used before attach().
class late_channel;

/// The groups of a rank; null where the rank is alone.
struct rank_collectives {
  std::shared_ptr<tp_coord::collective> stage;     ///< the tensor-parallel ranks of its stage
  std::shared_ptr<tp_coord::collective> replicas;  ///< the same rank of all replicas
};

class rank_groups {
 public:
  /// `limit`: how long a rank waits for the others of a group.
  explicit rank_groups(std::chrono::milliseconds limit) : limit_(limit) {}

  /// Makes the group of `members`, in rank order, and returns the collective of each member for
  /// which `is_here` is true, null for the others. `id` is unique to the group.
  std::vector<std::shared_ptr<tp_coord::collective>> make(std::uint32_t id,
                                                          const std::vector<rank_address>& members,
                                                          const std::vector<bool>& is_here);
  /// Connects the groups that span nodes; they can be used from now on.
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

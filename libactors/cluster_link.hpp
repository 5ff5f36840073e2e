/// What binds the nodes of one run: the transport between them, and the handles of each other's
/// node actors. Set up by exchanging infos over the members' control channel.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include <rrfp/actors/end_cause.hpp>
#include <rrfp/actors/session.hpp>
#include <rrfp/actors/ucx_transport.hpp>

#include "caf_compat.hpp"
#include "rank_groups.hpp"

namespace rrfp::actors {

/// Where what arrives from other nodes goes; empty: memory of the system.
struct arrival_memory {
  slab_memory host;
  ucx_transport::device_allocator on_devices;  ///< asked where UCX writes to devices
  std::function<void()> enter_thread;     ///< as in ucx_options
};

class cluster_link {
 public:
  struct opened {
    std::unique_ptr<cluster_link> link;
    /// To every rank of the job, whose routes are set.
    std::unique_ptr<transport> wire;
    /// Tied sides of all stages.
    std::map<stage_id, compute::tie> sides;
    /// When the job's node began, on this node's clock.
    std::chrono::steady_clock::time_point start;
  };

  /// Blocks until every node has done the same. `sides` are those of the stages hosted here.
  /// Messages arrive in `memory`. The end, on all nodes the same: a node cannot open its transport,
  /// or was lost, or does not come.
  static std::variant<opened, end_cause> open(const cluster& in_cluster, const session_setup& setup,
                                              const std::map<stage_id, compute::tie>& sides,
                                              std::chrono::steady_clock::time_point start,
                                              arrival_memory memory);

  /// Lets an actor system talk to others.
  void configure(caf::actor_system_config& config) const;
  /// Whether the job actor runs here.
  bool leads() const;
  /// Lets groups of ranks that span nodes talk.
  void attach(rank_groups& groups) { groups.attach(wire_); }
  /// One line on what UCX chose, for people.
  std::string transports() const { return wire_.transports(); }
  /// What that means for memory of devices.
  const char* device_transfer_note() const {
    return wire_.takes_cuda() ? "; device memory goes straight" : "; device memory is staged";
  }
  /// While the transport is there.
  metrics::transport_numbers count() const;
  /// Makes `node` known to the others. The job's node gets the handles of all, by node; the others
  /// their own.
  std::variant<std::vector<caf::actor>, end_cause> exchange(caf::actor_system& system,
                                                            const caf::actor& node);
  /// `who` is posted node_lost and node_unreachable from now on, and of what was lost before; null:
  /// nobody.
  void watch(const caf::actor& who);
  /// Waits for the others to have ended too, and brings the traces of all to the job's node. There:
  /// what `trace` lacks of the others, and why; empty: nothing.
  std::string finish(trace_recorder* trace);

 private:
  cluster_link(const cluster& in_cluster, ucx_transport& wire, std::chrono::milliseconds limit);
  void report_unreachable(std::string why);

  const cluster& cluster_;
  ucx_transport& wire_;
  const std::chrono::milliseconds limit_;
  std::mutex mutex_;
  caf::actor watcher_;
};

}  // namespace rrfp::actors

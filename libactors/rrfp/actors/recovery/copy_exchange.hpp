/// The copies of this node on their way: to a buddy while the run trains, and back to where they
/// are missing when it begins after a loss.
/// copy_fetches decides which piece is asked for. A thread of low priority does all work that takes
/// time, so that it uses what the tasks leave of the cores. At the end of a session, what is under
/// way is dropped.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <rrfp/actors/control/messages.hpp>
#include <rrfp/actors/control/run_context.hpp>
#include <rrfp/actors/recovery.hpp>
#include <rrfp/compute/rank_compute.hpp>
#include <rrfp/core/copy_fetches.hpp>
#include <rrfp/device/compute_thread.hpp>

#include "state_bytes.hpp"

namespace rrfp::actors {

/// Thread-safe.
class copy_exchange {
 public:
  using receiver = std::function<void(result<tensor_buffer>)>;

  /// `context` outlives it. `buddies`: of the ranks of this node; one that is missing has none.
  copy_exchange(recovery_setup setup, run_context& context, node_id here,
                std::map<std::pair<stage_id, rank_id>, node_id> buddies);

  /// Begins to copy the state of a rank of this node, which must not change before finish(). Null:
  /// that failed. When this node and the buddy hold the copy, or it has failed, the job gets
  /// copy_held. `state`: contiguous tensors in host memory; `complete`: as copy_set::put().
  std::shared_ptr<state_copy> begin_copy(const copy_key& what, std::uint64_t complete,
                                         std::vector<compute::named_buffer> state);
  /// Passes the copy that the run goes on from, fetched if it is not here.
  void restore(stage_id stage, rank_id rank, receiver done);
  // Messages of the job and of other nodes.
  void on(const keep_copies& m) { setup_.copies->keep(m.record); }
  void on(const copy_offered& m);
  void on(const fetch_copy& m);
  /// What the transport brings to copies_at() this node.
  void on_piece(message m);
  /// Drops what is under way: from now on nothing is sent, and no receiver is called.
  void close();

 private:
  /// What has come of a copy.
  struct fetch {
    tensor_buffer bytes;
    std::uint64_t xxh64 = 0;
    std::uint64_t complete = 0;
    std::vector<receiver> receivers;
  };

  void hold(const copy_key& what, std::uint64_t complete, tensor_buffer bytes);
  void take(const message& m);
  /// A large state takes longer to arrive than a run may be silent.
  void note_arrival();
  void begin_fetch(const copy_key& what, const recovery_point::source& from, std::uint64_t complete,
                   receiver r);
  /// Requires the lock.
  void ask(const std::vector<copy_fetches::request>& requests);
  void end_fetch(const copy_key& what, const result<tensor_buffer>& copy);
  void report(const copy_key& what, std::string failure);

  const recovery_setup setup_;
  run_context& context_;
  const node_id here_;
  const std::map<std::pair<stage_id, rank_id>, node_id> buddies_;
  std::mutex mutex_;
  copy_fetches core_{copy_fetches::limits{}};
  std::map<copy_key, fetch> fetches_;  ///< those of the core
  std::chrono::steady_clock::time_point tells_arrivals_at_;
  bool closed_ = false;
  compute_thread worker_;
};

}  // namespace rrfp::actors

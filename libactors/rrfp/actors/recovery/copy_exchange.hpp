/// The copies of this node on their way: to a buddy while the run trains, and back to where they
/// are missing when it begins after a loss.
/// copy_fetches decides which piece is asked for. At the end of a session, what is under way is
/// dropped.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <rrfp/actors/control/messages.hpp>
#include <rrfp/actors/recovery.hpp>
#include <rrfp/checkpoint/checksum.hpp>
#include <rrfp/compute/rank_compute.hpp>
#include <rrfp/core/copy_fetches.hpp>

namespace rrfp::actors {

/// Thread-safe.
class copy_exchange {
 public:
  /// `buddies`: of the ranks of this node; one that is missing has none.
  copy_exchange(recovery_setup setup, const directory& actors, node_id here,
                std::map<std::pair<stage_id, rank_id>, node_id> buddies);

  /// Copies the state of a rank of this node. The tensors are contiguous, in host memory.
  result<tensor_buffer> copy(const copy_key& what, std::span<const compute::named_buffer> state);
  /// Holds the copy and lets the buddy hold it, too. Then the job gets copy_held. `complete`: as
  /// copy_set::put().
  void hold(const copy_key& what, std::uint64_t complete, result<tensor_buffer> copied);
  /// Passes the copy that the run goes on from, fetched if it is not here.
  void restore(stage_id stage, rank_id rank, std::function<void(result<tensor_buffer>)> done);
  // Messages of the job and of other nodes.
  void on(const keep_copies& m) { setup_.copies->keep(m.record); }
  void on(const copy_offered& m);
  void on(const fetch_copy& m);
  void on(const copy_piece& m);
  /// Drops what is under way: from now on nothing is sent, and no receiver is called.
  void close();

 private:
  using receiver = std::function<void(result<copy_store::copy>)>;
  /// What has come of a copy.
  struct fetch {
    tensor_buffer bytes;
    std::uint64_t xxh64 = 0;
    std::uint64_t complete = 0;
    checkpoint::checksum sum;
    std::vector<receiver> receivers;
  };

  void begin_fetch(const copy_key& what, const recovery_point::source& from, std::uint64_t complete,
                   receiver r);
  /// Requires the lock.
  void ask(const std::vector<copy_fetches::request>& requests);
  void end_fetch(const copy_key& what, std::optional<error> failed);
  void report(const copy_key& what, std::string failure);
  /// Requires the lock.
  template <class Message>
  void send(node_id to, Message m);

  const recovery_setup setup_;
  const directory& actors_;
  const node_id here_;
  const std::map<std::pair<stage_id, rank_id>, node_id> buddies_;
  std::mutex mutex_;
  copy_fetches core_{copy_fetches::limits{}};
  std::map<copy_key, fetch> fetches_;  ///< those of the core
  bool closed_ = false;
};

}  // namespace rrfp::actors

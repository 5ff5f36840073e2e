/// Recovery in place: the job resumes after the loss of a node, with the same bits as without it.
///
/// After a step, each rank of replica 0 copies its state (parameters, optimizer) in the background,
/// and the copy is held in the memory of two nodes: its own and a buddy. When the copies of all
/// ranks are held, the nodes drop older ones. After a loss all sessions end; the other nodes keep
/// their copies, and join again with the replacement of the lost one. They exchange what they hold
/// and agree on the newest step for which the state of every rank is held on some node. A new
/// session fetches the missing copies and resumes from there. It has a token of its own, so
/// messages of the earlier session are dropped.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <rrfp/base/tensor_buffer.hpp>
#include <rrfp/core/recovery_point.hpp>

namespace rrfp::actors {

/// The copies of the current run that this process holds. Outlives the sessions. Thread-safe.
class copy_store {
 public:
  /// Memory for a copy; that of a dropped one, if it fits.
  tensor_buffer make_room(const copy_key& what, std::int64_t bytes);
  /// `complete`: as copy_set::put().
  void put(const held_copy& c, tensor_buffer bytes, std::uint64_t complete);
  void keep(job_record r);
  /// Nothing: it is not here.
  std::optional<tensor_buffer> find(const copy_key& what) const;
  /// The run is over.
  void clear();

  std::vector<held_copy> held() const;
  job_record record() const;

 private:
  /// Requires the lock.
  void drop(const std::vector<copy_key>& all);

  mutable std::mutex mutex_;
  copy_set set_;
  std::map<copy_key, tensor_buffer> bytes_;  ///< of the copies in the set
  std::map<std::pair<stage_id, rank_id>, tensor_buffer> spare_;
};

struct recovery_setup {
  std::uint64_t every = 1;  ///< steps between two copies
  std::shared_ptr<copy_store> copies;
  recovery_point from;
};

}  // namespace rrfp::actors

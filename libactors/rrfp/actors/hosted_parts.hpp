/// What this process hosts of a run: the stages and ranks placed here, with their devices,
/// collectives and counters.
#pragma once

#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/actors/control/run_context.hpp>
#include <rrfp/actors/session.hpp>
#include <rrfp/actors/stage/node_actor.hpp>
#include <rrfp/device/rank_devices.hpp>
#include <rrfp/device/virtual_device.hpp>
#include <rrfp/transport/timer_thread.hpp>

namespace rrfp::actors {

class hosted_parts {
 public:
  /// `in_cluster`: null if this process hosts everything. Both must outlive this.
  hosted_parts(const session_setup& setup, const cluster* in_cluster);

  /// Makes the stages and ranks. Call once, before the rest.
  status make();
  /// Which parameters of the checkpoint have a place in the part of the model hosted here, for
  /// check_restored(); empty: there is none to check.
  const std::string& restored() const { return restored_; }
  /// Each parameter of the checkpoint has a place on a node. `all`: restored() of each.
  status check_restored(std::vector<std::string> all) const;

  /// Tied sides of the stages hosted here.
  const std::map<stage_id, compute::tie>& sides() const { return sides_; }
  /// Moves the stages and ranks out. `sides`: of all stages.
  node_parts take(const std::map<stage_id, compute::tie>& sides);
  std::size_t ranks() const { return devices_.size(); }

  /// Runs `work` for each rank, on the thread of its device. Call before release_devices(), which
  /// drops what has not run by then.
  std::vector<std::future<void>> post_to_ranks(const rank_work& work);
  /// On the thread of this rank: runs what post_to_ranks() has left for it. Thread-safe.
  void run_posted(const rank_address& at);
  /// Breaks the promises of what has not begun. Thread-safe.
  void drop_posted();

  rank_groups& groups() { return groups_; }
  const std::shared_ptr<metrics::run_counters>& counters() const { return counters_; }
  const std::vector<rank_watch>& watches() const { return watches_; }
  arrival_memory memory_of_arrivals() const;
  bool has_device_memory() const { return with_memory_ != nullptr; }
  /// Waits for running work, which refers to actors, and destroys the devices.
  void release_devices();

 private:
  using members = std::vector<std::shared_ptr<tp_coord::collective>>;

  void note_saved_parameters();
  /// Whether a stage whose forward changes buffers may run by `hint`.
  status check_forwards_in_order(const policy& hint, dispatch_mode mode) const;
  /// The supervisor of a stage, where its first rank is.
  status make_stage(rank_address of, bool forwards_in_order);
  status make_rank(rank_address address, rank_collectives groups);
  /// Group `id` of the ranks whose addresses are like that of `member`, but `numbered` from 0; null
  /// for those on other nodes.
  template <class Id>
  members group_of(std::uint32_t id, std::uint32_t size, rank_address member,
                   Id rank_address::*numbered);
  std::unique_ptr<device> make_device(std::string name, rank_address address);
  status restore(compute::rank_compute& compute, stage_id stage);
  bool hosts(rank_address a) const;
  device_request request() const;

  const session_setup& setup_;
  const cluster* const cluster_;
  rank_groups groups_;
  const std::shared_ptr<metrics::run_counters> counters_ =
      std::make_shared<metrics::run_counters>();
  std::vector<rank_watch> watches_;
  /// Set if ranks compute on devices with their own memory.
  std::shared_ptr<rank_devices> with_memory_;
  /// The timer of emulated devices.
  std::unique_ptr<timer_thread> timer_;
  std::map<std::pair<stage_id, rank_id>, std::unique_ptr<virtual_device>> shared_devices_;
  std::vector<std::unique_ptr<device>> devices_;
  /// What the ranks compute by, in the order of devices_.
  std::vector<std::pair<rank_address, std::shared_ptr<compute::rank_compute>>> computes_;
  std::mutex posted_mutex_;
  std::map<rank_address, std::vector<std::function<void()>>> posted_;
  node_parts parts_;
  std::map<stage_id, compute::tie> sides_;
  /// The checkpoint to resume from, while ranks are made.
  std::optional<std::vector<compute::named_buffer>> saved_;
  /// Names of its parameters, sorted, and, as one character each, whether ranks here have them.
  std::vector<std::string> saved_parameters_;
  std::string restored_;
};

}  // namespace rrfp::actors

/// What the actors of one run share. Set up before the first actor starts; outlives the last one.
/// Read-only, except members that are atomic or lock themselves.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <rrfp/actors/session.hpp>
#include <rrfp/device/collective_watch.hpp>
#include <rrfp/device/compute_thread.hpp>
#include <rrfp/metrics/run_counters.hpp>
#include <rrfp/transport/transport.hpp>

#include "directory.hpp"

namespace rrfp::actors {

class copy_exchange;

/// Which collectives a rank is in; null where it has no such group.
struct rank_watch {
  rank_address address;
  std::shared_ptr<collective_watch> stage;     ///< with the ranks of its stage
  std::shared_ptr<collective_watch> replicas;  ///< with the same rank of all replicas
};

struct run_context {
  explicit run_context(const session_setup& s, auto&&... of_directory)
      : setup(s), actors(std::forward<decltype(of_directory)>(of_directory)...) {}

  const session_setup& setup;
  directory actors;
  const cluster* in_cluster = nullptr;  ///< null: this process hosts everything
  std::unique_ptr<transport> wire;
  compute_thread* saver = nullptr;             ///< writes checkpoints; null: none are made
  std::shared_ptr<copy_exchange> copies;       ///< for recovery; null: none are made
  std::function<void(step_id)> on_step_begun;  ///< called by every stage; may be empty
  /// On the thread of a rank: runs what the program wants of the rank between two steps.
  std::function<void(const rank_address&)> run_posted;
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  /// The counters of the stages and ranks hosted here.
  std::shared_ptr<metrics::run_counters> counters = std::make_shared<metrics::run_counters>();
  /// Watches of the same ranks, in the same order.
  std::vector<rank_watch> watches;

  std::uint32_t nodes() const { return in_cluster != nullptr ? in_cluster->places.nodes() : 1; }
  /// Nanoseconds since the run began, on the clock of node 0.
  std::int64_t now() const {
    return std::chrono::nanoseconds{std::chrono::steady_clock::now() - start}.count();
  }
  void note_progress() { counters->note_progress(); }
  /// Nanoseconds since the last progress of any stage here; read by the job actor's watchdog.
  std::int64_t silence() const { return metrics::steady_now() - counters->last_progress.value(); }
};

}  // namespace rrfp::actors

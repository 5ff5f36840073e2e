/// What the actors of one run share. Set up before the first actor starts and outlives the last;
/// read-only but for what is atomic or locks itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <rrfp/actors/session.hpp>
#include <rrfp/actors/trace.hpp>
#include <rrfp/actors/transport.hpp>
#include <rrfp/metrics/run_counters.hpp>
#include <rrfp/schedule/placement.hpp>

#include "collective_watch.hpp"
#include "synchronous_transport.hpp"
#include "work_queue.hpp"

namespace rrfp::actors {

/// Of a task, in milliseconds.
using task_time = std::function<double(step_id, stage_id, rank_id, const task&)>;

/// In which collectives a rank is; null where it is in no such group.
struct rank_watch {
  rank_address address;
  std::shared_ptr<collective_watch> stage;     ///< with the ranks of its stage
  std::shared_ptr<collective_watch> replicas;  ///< with the same rank of all replicas
};

struct run_context {
  pipeline_shape shape;
  std::uint32_t ranks = 1;
  std::uint32_t replicas = 1;
  std::unique_ptr<transport> wire;
  synchronous_transport* synchronous = nullptr;  ///< the wire, if sends and receives meet
  task_time delay;                  ///< injected; empty: none
  task_time emulated_time;          ///< of tasks that are not computed; empty: they are
  trace_recorder* trace = nullptr;  ///< null: not traced
  bool record_transcripts = false;
  std::string checkpoint_dir;                  ///< where saves go
  work_queue* saver = nullptr;                 ///< writes them; null: there are none
  std::function<void(step_id)> on_step_begun;  ///< called by every stage; empty: nobody listens
  /// Called by a node that the job does not run on; empty: nobody listens.
  std::function<void(const step_summary&)> on_step;
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  /// Of the stages and ranks that are hosted here.
  std::shared_ptr<metrics::run_counters> counters = std::make_shared<metrics::run_counters>();
  /// The same ranks, in their order.
  std::vector<rank_watch> watches;
  std::function<void(const std::string&)> on_report;  ///< empty: nobody wants reports

  /// Nanoseconds since the run began, on the clock of the job's node.
  std::int64_t now() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() -
                                                                start)
        .count();
  }
  void note_progress() { counters->note_progress(); }
  /// Since the last sign of life of any stage here; the job actor's watchdog reads it.
  std::int64_t silence() const { return metrics::steady_now() - counters->last_progress.value(); }
};

}  // namespace rrfp::actors

/// Chooses the strategy of each step of a run that has several: feeds what the stages measured to a
/// simulate::planner and lets it simulate the next step while the running one trains.
///
/// The simulations run on a thread of their own, which the kernel runs only when a core is free,
/// and take at most 1 % of the time of the steps; the first ones, at the start, 0.1 s. What the
/// planner has found when a step begins decides; nobody waits for it. It plans by the times of
/// replica 0.
///
/// Used by the job actor alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <rrfp/simulate/planner.hpp>

#include "control/messages.hpp"
#include "control/run_context.hpp"

namespace rrfp::actors {

class step_planner {
 public:
  /// `thread` runs the simulations; its other work would be starved.
  step_planner(simulate::plan candidates, std::shared_ptr<const simulate::cost_model> expected,
               step_id first, std::unique_ptr<work_queue> thread);
  ~step_planner();

  /// The strategy of this step, and how long its tasks should take from the first to the last.
  simulate::step_choice choose(step_id step) const;
  /// A stage of replica 0 has ended a training step.
  void record(const stage_step_ended& m);
  /// All stages have; `took`: the time of the step, in nanoseconds.
  void finish(step_id step, std::int64_t took);

 private:
  /// On the planning thread.
  void plan(step_id step, std::int64_t earned);

  const pipeline_shape shape_;
  const std::shared_ptr<const simulate::cost_model> expected_;
  std::vector<stage_times> measured_;  ///< by stage, of the running step

  const std::size_t strategies_;
  simulate::planner planner_;  ///< of the planning thread
  double allowance_ = 1e8;     ///< nanoseconds
  double cost_;                ///< of a simulation

  mutable std::mutex mutex_;
  step_id planned_;
  simulate::step_choice choice_;
  std::atomic<bool> stopping_ = false;
  const std::unique_ptr<work_queue> thread_;  ///< last, so that it ends first
};

}  // namespace rrfp::actors

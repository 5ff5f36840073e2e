/// Chooses how to run the next step: simulates it with each strategy of a plan and takes the
/// quickest.
///
/// A task of the simulated step takes its expected time, times the ratio of measured to expected
/// time that a random task of the same kind on the same virtual stage had in the last steps (tasks
/// that should take next to nothing have the ratio of all together); a message takes the time of a
/// random one of the last steps between the same stages. One such draw serves all strategies. So
/// spread and outliers are those that were measured, and without jitter every draw is exact. Before
/// the first measurement, tasks take their expected times.
///
/// Strategies are compared by their mean time relative to the first one, in which the last few
/// draws count most. Not thread-safe; equal calls give equal choices.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include <rrfp/simulate/simulator.hpp>

namespace rrfp::simulate {

/// What the tasks and messages of a step took, by virtual stage * microbatches + microbatch.
struct step_times {
  explicit step_times(const pipeline_shape& shape);

  std::vector<nanoseconds> forward;
  /// Of a fused backward: both parts; its weight is 0.
  std::vector<nanoseconds> backward;
  std::vector<nanoseconds> weight;
  /// From the end of the producing task to the arrival of the input of F, and of B.
  std::vector<nanoseconds> activation;
  std::vector<nanoseconds> gradient;
};

class planner {
 public:
  /// `candidates`: the plan of a step. `expected` gives times in any unit, since measured ones
  /// scale them; null: all tasks are alike.
  planner(plan candidates, std::shared_ptr<const cost_model> expected);

  void record(step_id step, const step_times& took);
  /// Without a measured step all draws are alike.
  bool has_measured() const { return !history_.empty(); }
  /// Time that each launch adds to its task.
  void set_launch_cost(nanoseconds cost) { plan_.launch_cost = cost; }

  /// Simulates `step` once, with the next strategy in turn. The cost grows with the number of
  /// tasks.
  void simulate_next(step_id step);
  /// Simulates `step` with every strategy in `draws` draws.
  void simulate_all(step_id step, std::uint32_t draws);

  /// The quickest strategy so far, and its mean time in the simulations of `step`; if there are
  /// none, in those of other steps, in proportion to the expected work of the busiest stage.
  step_choice choice(step_id step);

 private:
  class drawn_costs;

  /// By virtual stage * microbatches + microbatch.
  struct samples {
    std::vector<float> forward, backward, weight;  ///< measured / expected
    std::vector<nanoseconds> activation, gradient;
  };
  /// The simulations of one strategy.
  struct score {
    std::uint32_t draws = 0;
    double ratio = 1;     ///< mean of time / time of the first strategy
    double per_work = 0;  ///< mean of time / expected work of the busiest stage
    step_id step;         ///< of the last simulation; the next two belong to it
    std::uint32_t draws_of_step = 0;
    nanoseconds time_of_step = 0;
  };

  void begin_draw(step_id step);
  void choose();
  double expected(step_id step, stage_id stage, const task& t) const;
  /// The expected work of the busiest stage.
  double work_of(step_id step);

  plan plan_;
  std::shared_ptr<const cost_model> expected_;
  std::deque<samples> history_;
  std::vector<score> scores_;  ///< by strategy
  std::shared_ptr<const drawn_costs> draw_;
  step_id step_;
  std::uint64_t draws_ = 0;
  std::uint32_t next_ = 0;
  nanoseconds first_time_ = 0;  ///< of the first strategy in this draw
  std::uint32_t choice_ = 0;
  std::optional<step_id> weighed_;  ///< the step of `work_`
  double work_ = 0;
};

/// A step that a planner chose for, and the time that its tasks took.
struct chosen_step {
  step_choice chosen;
  nanoseconds took = 0;
};

/// "bfw_plus in 18 of 20 steps, zb_h1 in order in 2; forecasts off by 1.2 % (median)". Empty
/// without steps.
std::string describe(std::span<const strategy> strategies, std::span<const chosen_step> steps);

/// run(); a plan of several strategies gets a planner, which measures each step and chooses for the
/// next one.
result<report> run_planned(const plan& p, const cost_model& costs,
                           std::shared_ptr<const cost_model> expected, observer* watcher = nullptr);

}  // namespace rrfp::simulate

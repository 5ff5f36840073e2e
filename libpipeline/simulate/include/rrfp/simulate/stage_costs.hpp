/// A cost model with durations by virtual stage and kind, disturbed by jitter and delays.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <rrfp/simulate/given_delays.hpp>
#include <rrfp/simulate/simulator.hpp>
#include <rrfp/weather/weather.hpp>

namespace rrfp::simulate {

/// Undisturbed durations of the tasks of one microbatch, in milliseconds.
struct task_durations {
  double forward_ms = 1;
  double backward_ms = 1;
  double weight_ms = 1;
  /// Empty: backward_ms + weight_ms.
  std::optional<double> backward_weight_ms;
};

struct stage_costs_options {
  /// One entry for all stages, one per stage (shared by its chunks), or one per virtual stage.
  std::vector<task_durations> durations = {task_durations{}};
  /// Undisturbed duration of a message in each direction.
  double activation_ms = 0;
  double gradient_ms = 0;
  weather::jitter_options jitter;
  /// Extra delays, made for the same shape; null: none.
  std::shared_ptr<const given_delays> delays;
};

/// Thread-safe. Disturbances are drawn for rank 0 of each stage.
///
/// The moving average e of the paper's jitter is computed for each (step, stage) over the
/// undisturbed F, B and W of microbatch 0 on chunk 0, then on chunk 1, ..., then of microbatch 1,
/// and so on. It includes the task itself and starts at the first duration. It does not depend on
/// the order of execution or on whether backward is fused (a BW has the e of its B).
class stage_costs final : public cost_model {
 public:
  /// The error names the value that is out of range, or the wrong number of entries.
  static result<stage_costs> make(const pipeline_shape& shape, stage_costs_options options);

  nanoseconds compute(step_id step, stage_id stage, const task& t) const override;
  nanoseconds link(step_id step, virtual_stage_id to, const task& t) const override;

  /// The same costs without disturbances and delays, for nominal_sequences().
  stage_costs undisturbed() const;

 private:
  stage_costs(const pipeline_shape& shape, stage_costs_options options);

  const task_durations& durations_of(stage_id stage, chunk_id chunk) const;
  double average_ms(stage_id stage, const task& t) const;
  /// With jitter, without delays.
  nanoseconds disturbed(step_id step, stage_id stage, const task& t) const;

  pipeline_shape shape_;
  stage_costs_options options_;
  weather::jitter_model jitter_;
  /// By stage * chunks + chunk.
  std::vector<task_durations> durations_;
  /// By stage: the fixed point of the average over one microbatch's tasks.
  std::vector<double> fixed_point_ms_;
};

}  // namespace rrfp::simulate

/// Durations by virtual stage and kind, with weather on top: the cost model of planned and imagined
/// runs.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <rrfp/simulate/given_delays.hpp>
#include <rrfp/simulate/simulator.hpp>
#include <rrfp/weather/weather.hpp>

namespace rrfp::simulate {

/// What one task takes in good weather, in milliseconds.
struct task_durations {
  double forward_ms = 1;
  double backward_ms = 1;
  double weight_ms = 1;
  /// Empty: backward_ms + weight_ms.
  std::optional<double> backward_weight_ms;
};

struct stage_costs_options {
  /// One entry for all, one for each stage (shared by its chunks), or one for each virtual stage.
  std::vector<task_durations> durations = {task_durations{}};
  /// What a message takes in good weather, one way and the other.
  double activation_ms = 0;
  double gradient_ms = 0;
  weather::jitter_options jitter;
  /// On top of all else, made for the same shape; null: none.
  std::shared_ptr<const given_delays> delays;
};

/// Thread-safe. Disturbances are drawn for rank 0 of each stage.
///
/// The moving average e of the paper's jitter runs, for each (step, stage), over F, B and W of
/// microbatch 0 on chunk 0, then on chunk 1, ..., then of microbatch 1, in good weather. It takes
/// in the task itself, begins with the first duration, and is the same whatever runs first, fused
/// or split (a BW has the e of its B).
class stage_costs final : public cost_model {
 public:
  /// The error names the value that is out of range, or the number of entries that fits no way.
  static result<stage_costs> make(const pipeline_shape& shape, stage_costs_options options);

  nanoseconds compute(step_id step, stage_id stage, const task& what) const override;
  nanoseconds link(step_id step, virtual_stage_id to, const task& what) const override;

  /// The same without any disturbance or delay, for nominal_sequences().
  stage_costs undisturbed() const;

 private:
  stage_costs(const pipeline_shape& shape, stage_costs_options options);

  const task_durations& durations_of(stage_id stage, chunk_id chunk) const;
  double average_ms(stage_id stage, const task& what) const;
  /// Under the weather, without delays.
  nanoseconds disturbed(step_id step, stage_id stage, const task& what) const;

  pipeline_shape shape_;
  stage_costs_options options_;
  weather::forecast forecast_;
  /// By stage * chunks + chunk.
  std::vector<task_durations> durations_;
  /// By stage: the average that one microbatch's tasks leave unchanged.
  std::vector<double> kept_ms_;
};

}  // namespace rrfp::simulate

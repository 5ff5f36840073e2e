/// A cost model with durations by virtual stage and kind, disturbed by jitter and delays.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <rrfp/core/placement.hpp>
#include <rrfp/simulate/conditions.hpp>
#include <rrfp/simulate/duration_table.hpp>
#include <rrfp/simulate/last_steps.hpp>
#include <rrfp/simulate/simulator.hpp>

namespace rrfp::simulate {

/// Undisturbed durations of the tasks of one microbatch, in milliseconds.
struct task_durations {
  double forward_ms = 1;
  double backward_ms = 1;
  double weight_ms = 1;
};

/// Undisturbed costs that differ between the microbatches of a step, for stages of one chunk.
/// Implementations must be pure functions of their arguments. `mb`: as loaded.
class microbatch_costs {
 public:
  virtual ~microbatch_costs() = default;
  /// `kind` is F, B or W.
  virtual double task_ms(step_id step, stage_id stage, task_kind kind, microbatch_id mb) const = 0;
  /// Between stage `lower` and the next one, in either direction.
  virtual double message_ms(step_id step, stage_id lower, microbatch_id mb) const = 0;
  /// The duration of the message that tells the shape of that message; nullopt if none is sent.
  virtual std::optional<double> shape_ms(stage_id) const { return {}; }
  virtual std::uint64_t activation_bytes(step_id step, stage_id stage, microbatch_id mb) const = 0;
  /// The size of the message of message_ms().
  virtual std::uint64_t message_bytes(step_id step, stage_id lower, microbatch_id mb) const = 0;
};

struct stage_costs_options {
  /// One entry for all stages, one per stage (shared by its chunks), or one per virtual stage.
  std::vector<task_durations> durations = {task_durations{}};
  /// Undisturbed duration of a message in each direction.
  double activation_ms = 0;
  double gradient_ms = 0;
  /// Replaces the durations and counts bytes; null: every microbatch has the durations above.
  std::shared_ptr<const microbatch_costs> by_microbatch;
  /// Number of tensor-parallel ranks of a stage; jitter.ranks says how their delays differ.
  std::uint32_t ranks = 1;
  simulate::conditions jitter;
  /// Extra delays, made for the same shape; null: none.
  std::shared_ptr<const given_delays> delays;
  /// The order in which the microbatches of a step are admitted, by their undisturbed time.
  admission admit = admission::loaded;
};

/// Thread-safe. The microbatch of a task is its position in the order of admission; costs and
/// disturbances belong to the loaded microbatch, wherever it is admitted.
///
/// The moving average e of the paper's jitter is computed for each (step, stage) over the
/// undisturbed F and BW of microbatch 0 on chunk 0, then on chunk 1, ..., then of microbatch 1, and
/// so on. It includes the task itself and starts at the first duration. It does not depend on
/// the order of execution or on whether backward is fused: B and W have the e of their BW.
class stage_costs final : public cost_model {
 public:
  /// The values must be in the ranges of their job keys.
  stage_costs(const pipeline_shape& shape, stage_costs_options options);

  /// On the slowest rank.
  nanoseconds compute(step_id step, stage_id stage, const task& t) const override;
  /// To rank 0.
  nanoseconds link(step_id step, virtual_stage_id to, const task& t) const override;
  nanoseconds compute_of_rank(step_id step, stage_id stage, rank_id rank,
                              const task& t) const override;
  nanoseconds link_of_rank(step_id step, virtual_stage_id to, rank_id rank,
                           const task& t) const override;

  bool has_bytes() const { return options_.by_microbatch != nullptr; }
  /// Only if has_bytes().
  std::uint64_t activation_bytes(step_id step, stage_id stage, microbatch_id mb) const;
  /// The size of the message that carries the input of the task to the virtual stage. Requires
  /// has_bytes().
  std::uint64_t message_bytes(step_id step, virtual_stage_id to, const task& t) const;

  /// Maps the position in the step to the index of the loaded microbatch.
  std::vector<std::uint32_t> order_of(step_id step) const;

  /// The same costs without disturbances and delays.
  stage_costs undisturbed() const;

 private:
  /// What follows from all microbatches of a step.
  struct step_view {
    std::vector<std::uint32_t> order;
    /// e after F and after BW, by stage * microbatches + loaded microbatch; empty unless needed.
    struct averages {
      double forward_ms = 0;
      double backward_ms = 0;
    };
    std::vector<averages> average;
  };

  /// Null if the step needs no view: microbatches are admitted as loaded, and have a closed form
  /// of e or need none.
  std::shared_ptr<const step_view> view_of(step_id step) const;
  step_view make_view(step_id step) const;

  const task_durations& durations_of(stage_id stage, chunk_id chunk) const;
  /// Undisturbed; `t.kind` is F, B or W.
  double own_ms(step_id step, stage_id stage, const task& loaded) const;
  double own_link_ms(step_id step, virtual_stage_id to, const task& loaded) const;
  double shape_ms(step_id step, virtual_stage_id to, rank_id rank, const task& loaded) const;
  nanoseconds compute_of(step_id step, stage_id stage, simulate::rank_range ranks,
                         const task& admitted) const;
  /// Rank 0 if the ranks have one delay.
  rank_id drawn_rank(rank_id rank) const;
  double average_ms(const step_view* view, stage_id stage, const task& loaded) const;
  double closed_form_ms(stage_id stage, const task& loaded) const;
  /// With jitter, without delays.
  double disturbed_ms(step_id step, stage_id stage, simulate::rank_range ranks, const task& loaded,
                      double average) const;
  task as_loaded(step_id step, task t) const;

  pipeline_shape shape_;
  stage_costs_options options_;
  simulate::disturbed_times jitter_;
  /// By stage * chunks + chunk.
  std::vector<task_durations> durations_;
  /// By stage: the fixed point of the average over one microbatch's tasks.
  std::vector<double> fixed_point_ms_;
  std::shared_ptr<last_steps<step_view>> views_;
};

}  // namespace rrfp::simulate

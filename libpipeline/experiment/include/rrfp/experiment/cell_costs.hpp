/// What the tasks and messages of one step of a cell take, in its weather: the same for every run
/// that is paired with it. Engines other than the simulator take their delays from here, too.
#pragma once

#include <memory>
#include <vector>

#include <rrfp/experiment/cell.hpp>
#include <rrfp/simulate/simulator.hpp>
#include <rrfp/workload/pipeline_cost.hpp>

namespace rrfp::experiment {

/// The tables that all steps of a cell share. Thread-safe.
class cell_model {
 public:
  /// Errors: more stages than the model has parts; values that a machine cannot have.
  static result<cell_model> make(const cell& c);

  const cell& of() const { return cell_; }
  pipeline_shape shape() const;

  /// What a task takes in good weather, in milliseconds. `kind` is F, B or W.
  double own_ms(stage_id stage, task_kind kind, std::uint32_t images) const;
  /// Of the message between `lower` and the next stage.
  double message_ms(stage_id lower, std::uint32_t images) const;
  std::uint64_t activation_bytes(stage_id stage, std::uint32_t images) const;
  std::uint64_t static_bytes(stage_id stage) const;
  double gradient_exchange_ms() const { return model_ ? model_->gradient_exchange_ms() : 0; }
  /// By loaded microbatch.
  std::vector<std::uint32_t> images(step_id step, replica_id replica) const;

 private:
  explicit cell_model(const cell& c) : cell_(c) {}

  cell cell_;
  std::shared_ptr<const workload::pipeline_cost> model_;
};

/// One step of one replica. Microbatches are numbered in the order of admission, which is chosen by
/// their own times, not by the weather; the weather of a loaded microbatch is its own, wherever it
/// is admitted. Keys: replica r has the weather of seed + r * 2^32.
///
/// The e of the paper's jitter runs over F, B and W of the loaded microbatches in turn, as in
/// simulate::stage_costs. `step` of the calls is ignored.
class step_costs final : public simulate::cost_model {
 public:
  step_costs(const cell_model& model, step_id step, replica_id replica);

  simulate::nanoseconds compute(step_id step, stage_id stage, const task& what) const override;
  simulate::nanoseconds link(step_id step, virtual_stage_id to, const task& what) const override;

  /// As link(), of the attempt that arrives alone, and what becomes of the others.
  simulate::nanoseconds travel(virtual_stage_id to, const task& what) const;
  weather::message_fate fate_of(virtual_stage_id to, const task& what) const;

  /// Of the microbatch admitted at this place.
  std::uint64_t activation_bytes(stage_id stage, microbatch_id admitted) const;
  /// Position in the step -> index of the loaded microbatch.
  const std::vector<std::uint32_t>& order() const { return order_; }

 private:
  task as_loaded(task t) const;
  double average_ms(stage_id stage, const task& loaded) const;
  /// Of the message that brings the input of `loaded` to `to`, on a good day.
  double own_link_ms(virtual_stage_id to, const task& loaded) const;

  const cell_model& model_;
  step_id step_;
  weather::weathered weather_;
  std::vector<std::uint32_t> images_;
  std::vector<std::uint32_t> order_;
  /// e after F and after B, by stage * microbatches + loaded microbatch; empty unless needed.
  struct averages {
    double forward_ms = 0;
    double backward_ms = 0;
  };
  std::vector<averages> averages_;
};

}  // namespace rrfp::experiment

/// The durations of the tasks and messages in one step of a cell, under its weather; equal for all
/// runs that are paired with it. Engines other than the simulator also take their delays from here.
#pragma once

#include <memory>
#include <vector>

#include <rrfp/experiment/cell.hpp>
#include <rrfp/simulate/simulator.hpp>
#include <rrfp/workload/pipeline_cost.hpp>

namespace rrfp::experiment {

/// The tables shared by all steps of a cell. Thread-safe.
class cell_model {
 public:
  /// Errors: more stages than the model has parts; values out of range for a machine.
  static result<cell_model> make(const cell& c);

  const cell& source() const { return cell_; }
  pipeline_shape shape() const;

  /// Undisturbed duration of a task in milliseconds. `kind` is F, B or W.
  double own_ms(stage_id stage, task_kind kind, std::uint32_t images) const;
  /// Undisturbed duration of the message between `lower` and the next stage, in milliseconds.
  double message_ms(stage_id lower, std::uint32_t images) const;
  std::uint64_t activation_bytes(stage_id stage, std::uint32_t images) const;
  std::uint64_t static_bytes(stage_id stage) const;
  double gradient_exchange_ms() const { return model_ ? model_->gradient_exchange_ms() : 0; }
  /// Number of images, by loaded microbatch.
  std::vector<std::uint32_t> images(step_id step, replica_id replica) const;

 private:
  explicit cell_model(const cell& c) : cell_(c) {}

  cell cell_;
  std::shared_ptr<const workload::pipeline_cost> model_;
};

/// The costs of one step of one replica. Microbatches are numbered in the order of admission, which
/// depends on their undisturbed times. The disturbances belong to the loaded microbatch, wherever
/// it is admitted. Replica r uses the seed + r * 2^32.
///
/// The e of the paper's jitter runs over F, B and W of the loaded microbatches in turn, as in
/// simulate::stage_costs. The `step` argument of the calls is ignored.
class step_costs final : public simulate::cost_model {
 public:
  step_costs(const cell_model& model, step_id step, replica_id replica);

  simulate::nanoseconds compute(step_id step, stage_id stage, const task& t) const override;
  simulate::nanoseconds link(step_id step, virtual_stage_id to, const task& t) const override;

  /// The time of the successful attempt of a message, and the losses and duplication of the
  /// message; link() is the sum.
  simulate::nanoseconds travel(virtual_stage_id to, const task& t) const;
  weather::message_delivery delivery_of(virtual_stage_id to, const task& t) const;

  /// Activation bytes of the microbatch at this position of the admission order.
  std::uint64_t activation_bytes(stage_id stage, microbatch_id admitted) const;
  /// Maps the position in the step to the index of the loaded microbatch.
  const std::vector<std::uint32_t>& order() const { return order_; }

 private:
  task as_loaded(task t) const;
  double average_ms(stage_id stage, const task& loaded) const;
  /// Undisturbed duration of the message that carries the input of `loaded` to `to`.
  double own_link_ms(virtual_stage_id to, const task& loaded) const;

  const cell_model& model_;
  step_id step_;
  weather::disturbed_times weather_;
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

#include "job_data.hpp"

#include <utility>
#include <vector>

#include <rrfp/base/step_name.hpp>
#include <rrfp/compute/estimate.hpp>
#include <rrfp/core/placement.hpp>
#include <rrfp/simulate/last_steps.hpp>

namespace rrfp::actors {

namespace {

class job_data final : public compute::batch_source {
 public:
  job_data(std::shared_ptr<const compute::batch_source> training,
           std::shared_ptr<const compute::batch_source> held_out, const job::job& j,
           const pipeline_shape& shape)
      : training_(std::move(training)),
        held_out_(std::move(held_out)),
        batches_(j.eval.batches),
        model_(j.model),
        pipeline_(j.pipeline),
        cut_(job::layers_of_parts(j)),
        order_(j.dispatch.admit),
        microbatches_(shape.microbatches) {}

  microbatch_counts counts(step_id step) const override { return of(step).counts(within(step)); }
  void begin(step_id step, const microbatch_counts& microbatches) const override {
    of(step).begin(within(step), microbatches);
  }
  compute::microbatch load(step_id step, microbatch_id mb) const override {
    return of(step).load(within(step), as_loaded(step, mb));
  }
  compute::microbatch load_text(step_id step, microbatch_id mb) const override {
    return of(step).load_text(within(step), as_loaded(step, mb));
  }
  compute::microbatch_layout layout(step_id step, microbatch_id mb) const override {
    return of(step).layout(within(step), as_loaded(step, mb));
  }
  std::int64_t step_tokens(step_id step) const override {
    return of(step).step_tokens(within(step));
  }

 private:
  bool evaluates(step_id step) const { return held_out_ != nullptr && is_evaluation(step); }
  const compute::batch_source& of(step_id step) const {
    return evaluates(step) ? *held_out_ : *training_;
  }
  step_id within(step_id step) const {
    return evaluates(step) ? step_id{(step.value() - first_evaluation) % batches_} : step;
  }
  microbatch_id as_loaded(step_id step, microbatch_id mb) const {
    if (evaluates(step) || order_ == admission::loaded) return mb;
    const auto counts = training_->counts(step).or_equal(pipeline_.replicas, microbatches_);
    const auto replica = counts.replica_of(mb);
    const auto first = counts.first_of(replica);
    const auto order = orders_.at(step.value() * pipeline_.replicas + replica.value(), [&] {
      return admission_order(order_, costs_of(step, first, counts.of(replica)));
    });
    return microbatch_id{first + (*order)[mb.value() - first]};
  }

  /// The FLOPs of `count` microbatches.
  std::vector<double> costs_of(step_id step, std::uint32_t first, std::uint32_t count) const {
    std::vector<double> all;
    compute::microbatch_layout last;
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto layout = training_->layout(step, microbatch_id{first + i});
      if (i > 0 && layout == last) {
        all.push_back(all.back());
        continue;
      }
      last = layout;
      all.push_back(0);
      for (const auto& c :
           compute::estimate(model_, layout, cut_, pipeline_.tp, pipeline_.recompute))
        all.back() += c.forward_flops + c.backward_flops + c.weight_flops;
    }
    return all;
  }

  const std::shared_ptr<const compute::batch_source> training_;
  const std::shared_ptr<const compute::batch_source> held_out_;
  const std::uint32_t batches_;  ///< of an evaluation
  const job::model_options model_;
  const job::pipeline_options pipeline_;
  const std::vector<std::uint32_t> cut_;
  const admission order_;
  const std::uint32_t microbatches_;
  mutable simulate::last_steps<std::vector<std::uint32_t>> orders_;
};

}  // namespace

std::shared_ptr<const compute::batch_source> data_of_job(
    std::shared_ptr<const compute::batch_source> training,
    std::shared_ptr<const compute::batch_source> held_out, const job::job& j,
    const pipeline_shape& shape) {
  if (held_out == nullptr && j.dispatch.admit == admission::loaded) return training;
  return std::make_shared<const job_data>(std::move(training), std::move(held_out), j, shape);
}

}  // namespace rrfp::actors

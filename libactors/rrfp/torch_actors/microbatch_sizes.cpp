#include "microbatch_sizes.hpp"

#include <utility>
#include <vector>

#include <rrfp/compute/estimate.hpp>
#include <rrfp/core/placement.hpp>
#include <rrfp/simulate/last_steps.hpp>

namespace rrfp::actors {

namespace {

class admitted_source final : public compute::batch_source {
 public:
  admitted_source(std::shared_ptr<const compute::batch_source> loaded, const job::job& j,
                  const pipeline_shape& shape)
      : loaded_(std::move(loaded)),
        model_(j.model),
        pipeline_(j.pipeline),
        cut_(job::layers_of_parts(j)),
        order_(j.dispatch.admit),
        microbatches_(shape.microbatches) {}

  microbatch_counts counts(step_id step) const override { return loaded_->counts(step); }
  void begin(step_id step, const microbatch_counts& microbatches) const override {
    loaded_->begin(step, microbatches);
  }
  compute::microbatch load(step_id step, microbatch_id mb) const override {
    return loaded_->load(step, as_loaded(step, mb));
  }
  compute::microbatch load_text(step_id step, microbatch_id mb) const override {
    return loaded_->load_text(step, as_loaded(step, mb));
  }
  compute::microbatch_layout layout(step_id step, microbatch_id mb) const override {
    return loaded_->layout(step, as_loaded(step, mb));
  }
  std::int64_t step_tokens(step_id step) const override { return loaded_->step_tokens(step); }

 private:
  microbatch_id as_loaded(step_id step, microbatch_id mb) const {
    const auto counts = loaded_->counts(step).or_equal(pipeline_.replicas, microbatches_);
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
      const auto layout = loaded_->layout(step, microbatch_id{first + i});
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

  const std::shared_ptr<const compute::batch_source> loaded_;
  const job::model_options model_;
  const job::pipeline_options pipeline_;
  const std::vector<std::uint32_t> cut_;
  const admission order_;
  const std::uint32_t microbatches_;
  mutable simulate::last_steps<std::vector<std::uint32_t>> orders_;
};

}  // namespace

std::shared_ptr<const compute::batch_source> admitted(
    std::shared_ptr<const compute::batch_source> loaded, const job::job& j,
    const pipeline_shape& shape) {
  if (j.dispatch.admit == admission::loaded) return loaded;
  return std::make_shared<const admitted_source>(std::move(loaded), j, shape);
}

}  // namespace rrfp::actors

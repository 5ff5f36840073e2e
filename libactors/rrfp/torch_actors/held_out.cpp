#include "held_out.hpp"

#include <utility>

#include <rrfp/base/step_name.hpp>

namespace rrfp::actors {

namespace {

class two_sources final : public compute::batch_source {
 public:
  two_sources(std::shared_ptr<const compute::batch_source> training,
              std::shared_ptr<const compute::batch_source> held_out, std::uint32_t batches)
      : training_(std::move(training)), held_out_(std::move(held_out)), batches_(batches) {}

  microbatch_counts counts(step_id step) const override { return of(step).counts(within(step)); }
  void begin(step_id step, const microbatch_counts& microbatches) const override {
    of(step).begin(within(step), microbatches);
  }
  compute::microbatch load(step_id step, microbatch_id mb) const override {
    return of(step).load(within(step), mb);
  }
  compute::microbatch load_text(step_id step, microbatch_id mb) const override {
    return of(step).load_text(within(step), mb);
  }
  compute::microbatch_layout layout(step_id step, microbatch_id mb) const override {
    return of(step).layout(within(step), mb);
  }
  std::int64_t step_tokens(step_id step) const override {
    return of(step).step_tokens(within(step));
  }

 private:
  const compute::batch_source& of(step_id step) const {
    return is_evaluation(step) ? *held_out_ : *training_;
  }
  step_id within(step_id step) const {
    return is_evaluation(step) ? step_id{(step.value() - first_evaluation) % batches_} : step;
  }

  const std::shared_ptr<const compute::batch_source> training_;
  const std::shared_ptr<const compute::batch_source> held_out_;
  const std::uint32_t batches_;
};

}  // namespace

std::shared_ptr<const compute::batch_source> with_held_out(
    std::shared_ptr<const compute::batch_source> training,
    std::shared_ptr<const compute::batch_source> held_out, std::uint32_t batches) {
  return std::make_shared<const two_sources>(std::move(training), std::move(held_out), batches);
}

}  // namespace rrfp::actors

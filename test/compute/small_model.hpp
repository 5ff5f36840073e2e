/// Sizes and data of the tests in this folder: small enough for steps of milliseconds.
#pragma once

#include <memory>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <rrfp/compute/estimate.hpp>
#include <rrfp/job/model_rules.hpp>
#include <rrfp/job/options.hpp>
#include <rrfp/torch/batch_source.hpp>

namespace rrfp::compute::test {

inline job::model_options small_model() {
  job::model_options m;
  m.layers = 4;
  m.hidden = 32;
  m.heads = 4;
  m.vocabulary = 64;
  m.context = 16;
  m.dropout = 0.1;
  return m;
}

inline job::train_options small_train() {
  job::train_options t;
  t.seed = 7;
  t.lr = 1e-2;
  t.clip_norm = 0.5;
  return t;
}

/// The layers of part `k` of `parts` even ones.
inline layer_range nth_part(const job::model_options& m, std::uint32_t k, std::uint32_t parts) {
  return layers_of(job::even_cut(job::all_layers_of(m), parts), virtual_stage_id{k});
}

/// Random tokens. Lengths and padding differ from microbatch to microbatch, so a loss that is not
/// averaged over all tokens of the step shows.
class uneven_source final : public batch_source {
 public:
  explicit uneven_source(std::uint32_t microbatches) : microbatches_(microbatches) {}

  microbatch load(step_id step, microbatch_id mb) const override {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(1000 * step.value() + mb.value() + 1);
    const std::int64_t length = 16 - 3 * (mb.value() % 3);
    microbatch batch;
    batch.inputs = at::randint(64, {2, length}, generator, at::kLong);
    batch.targets = at::randint(64, {2, length}, generator, at::kLong);
    const std::int64_t padding = mb.value() % 2;
    if (padding > 0) batch.targets[1].narrow(0, length - padding, padding).fill_(ignored_target);
    batch.tokens = 2 * length - padding;
    return batch;
  }

  std::int64_t step_tokens(step_id step) const override {
    std::int64_t sum = 0;
    for (std::uint32_t mb = 0; mb < microbatches_; ++mb)
      sum += load(step, microbatch_id{mb}).tokens;
    return sum;
  }

 private:
  std::uint32_t microbatches_;
};

}  // namespace rrfp::compute::test

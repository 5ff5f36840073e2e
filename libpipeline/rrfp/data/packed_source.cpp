#include "packed_source.hpp"

#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <rrfp/compute/estimate.hpp>
#include <rrfp/workload/packer.hpp>

namespace rrfp::data {

void set_targets(std::span<const std::int64_t> inputs, std::span<std::int64_t> targets,
                 std::int64_t image_token) {
  for (std::size_t i = 0; i + 1 < inputs.size(); ++i)
    targets[i] = inputs[i + 1] == image_token ? compute::ignored_target : inputs[i + 1];
  if (!targets.empty()) targets.back() = compute::ignored_target;
}

packed_source::packed_source(const source_config& config, std::unique_ptr<const sample_set> samples)
    : config_(config),
      microbatches_(config.microbatches),
      microbatch_size_(config.data.microbatch_size),
      samples_(std::move(samples)),
      order_(samples_->count(), config.seed, config.data.order) {}

std::vector<std::uint32_t> packed_source::samples_of(step_id step) const {
  const auto places = microbatches_ * microbatch_size_;
  return order_.at(step.value() * places, places);
}

packed_source::microbatch_samples packed_source::balanced(step_id step) const {
  const auto samples = samples_of(step);
  std::vector<workload::sample_work> work;
  for (const auto n : samples)
    work.push_back(
        {samples_->size(n).tokens, compute::training_flops(config_.model, layout_of({n}))});
  const auto each = static_cast<std::uint32_t>(microbatches_ / config_.replicas);
  const auto packed = workload::pack_step(work, config_.replicas, each,
                                          microbatch_size_ * config_.data.sequence_length);
  microbatch_samples made(microbatches_);
  for (std::size_t mb = 0; mb < made.size(); ++mb) {
    if (packed) {
      for (const auto i : (*packed)[mb / each][mb % each]) made[mb].push_back(samples[i]);
    } else {
      const auto first = samples.begin() + static_cast<std::ptrdiff_t>(mb * microbatch_size_);
      made[mb].assign(first, first + static_cast<std::ptrdiff_t>(microbatch_size_));
    }
  }
  return made;
}

std::vector<std::uint32_t> packed_source::samples_of(step_id step, microbatch_id mb) const {
  // Windows have equal work.
  if (config_.data.pack == job::sample_packing::cost && !samples_->are_windows())
    return (*balanced_.at(step.value(), [&] { return balanced(step); }))[mb.value()];
  return order_.at((step.value() * microbatches_ + mb.value()) * microbatch_size_,
                   microbatch_size_);
}

compute::microbatch packed_source::load(step_id step, microbatch_id mb, bool with_images) const {
  const auto samples = samples_of(step, mb);
  compute::microbatch batch;
  std::int64_t tokens = 0;
  for (const auto n : samples) {
    const auto size = samples_->size(n);
    batch.lengths.push_back(size.tokens);
    tokens += size.tokens;
    batch.tokens += size.counted;
  }
  batch.inputs = at::empty({tokens}, at::kLong);
  batch.targets = at::empty({tokens}, at::kLong);
  auto* inputs = batch.inputs.mutable_data_ptr<std::int64_t>();
  auto* targets = batch.targets.mutable_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto length = static_cast<std::size_t>(batch.lengths[i]);
    samples_->load(samples[i], {inputs, length}, {targets, length},
                   with_images ? &batch.images : nullptr);
    inputs += length;
    targets += length;
  }
  if (samples_->are_windows()) {
    const auto sequences = static_cast<std::int64_t>(samples.size());
    batch.inputs = batch.inputs.view({sequences, -1});
    batch.targets = batch.targets.view({sequences, -1});
    batch.lengths.clear();
  }
  return batch;
}

compute::microbatch_layout packed_source::layout(step_id step, microbatch_id mb) const {
  return layout_of(samples_of(step, mb));
}

compute::microbatch_layout packed_source::layout_of(
    const std::vector<std::uint32_t>& samples) const {
  compute::microbatch_layout layout;
  for (const auto n : samples) {
    layout.lengths.push_back(samples_->size(n).tokens);
    samples_->append_image_sizes(n, layout.images);
  }
  return layout;
}

std::int64_t packed_source::step_tokens(step_id step) const {
  std::int64_t tokens = 0;
  for (const auto n : samples_of(step)) tokens += samples_->size(n).counted;
  return tokens;
}

}  // namespace rrfp::data

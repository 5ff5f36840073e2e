#include "packed_source.hpp"

#include <stdexcept>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <rrfp/base/check.hpp>
#include <rrfp/compute/estimate.hpp>

namespace rrfp::data {

void set_targets(std::span<const std::int64_t> inputs, std::span<std::int64_t> targets,
                 std::int64_t image_token) {
  for (std::size_t i = 0; i + 1 < inputs.size(); ++i)
    targets[i] = inputs[i + 1] == image_token ? compute::ignored_target : inputs[i + 1];
  if (!targets.empty()) targets.back() = compute::ignored_target;
}

packed_source::packed_source(const source_config& config, std::unique_ptr<const sample_set> samples)
    : config_(config),
      places_(std::uint64_t{config.microbatches} * config.data.microbatch_size),
      samples_(std::move(samples)),
      order_(samples_->count(), config.seed, config.data.order) {}

bool packed_source::is_balanced() const {
  const auto& data = config_.data;
  // Windows have equal work.
  return data.max_tokens != 0 ||
         (data.pack == job::sample_packing::cost && !samples_->are_windows());
}

std::shared_ptr<const packed_source::packed_step> packed_source::balanced(step_id step) const {
  const auto number = step.value() / span();
  const auto made = balanced_.at(number, [&]() -> std::vector<packed_step> {
    if (span() > 1) return balance_with_delay(step_id{number * span()});
    return {balance(step)};
  });
  return {made, &(*made)[step.value() % span()]};
}

std::vector<workload::sample_work> packed_source::work_of(
    const std::vector<std::uint32_t>& samples) const {
  std::vector<workload::sample_work> work;
  for (const auto n : samples)
    work.push_back(
        {samples_->size(n).tokens, compute::training_flops(config_.model, layout_of({n}))});
  return work;
}

void packed_source::add(const workload::packed_replicas& packed,
                        const std::vector<std::uint32_t>& samples, packed_step& to) {
  for (const auto& of_replica : packed) {
    to.counts.by_replica.push_back(static_cast<std::uint32_t>(of_replica.size()));
    for (const auto& indices : of_replica) {
      to.samples.emplace_back();
      for (const auto i : indices) to.samples.back().push_back(samples[i]);
    }
  }
}

packed_source::packed_step packed_source::balance(step_id step) const {
  const auto samples = order_.at(step.value() * places_, places_);
  const auto work = work_of(samples);
  const auto& data = config_.data;
  const auto replicas = config_.replicas;
  const auto each = data.max_tokens != 0
                        ? workload::microbatches_needed(work, replicas, data.max_tokens)
                        : config_.microbatches / replicas;
  packed_step made;
  if (const auto packed = workload::pack_step(work, replicas, each, data.microbatch_tokens())) {
    add(*packed, samples, made);
    return made;
  }
  RRFP_CHECK(data.max_tokens == 0, "as many microbatches as are needed hold the samples");
  made.counts = microbatch_counts::equal(replicas, each);
  for (auto first = samples.begin(); first != samples.end();) {
    const auto end = first + static_cast<std::ptrdiff_t>(data.microbatch_size);
    made.samples.emplace_back(first, end);
    first = end;
  }
  return made;
}

std::vector<packed_source::packed_step> packed_source::balance_with_delay(step_id first) const {
  const auto samples = order_.at(first.value() * places_, span() * places_);
  auto made = workload::packer::make(work_of(samples), {.max_tokens = config_.data.max_tokens,
                                                        .replicas = config_.replicas,
                                                        .batch_size = places_,
                                                        .delay = config_.data.pack_delay,
                                                        .shuffle = false});
  RRFP_CHECK(made.ok(), "the job and its data are valid");
  std::vector<packed_step> steps(span());
  for (auto& step : steps) add(made->next().replicas, samples, step);
  return steps;
}

microbatch_counts packed_source::counts(step_id step) const {
  return config_.data.max_tokens != 0 ? balanced(step)->counts : microbatch_counts{};
}

void packed_source::begin(step_id step, const microbatch_counts& microbatches) const {
  const auto own = counts(step);
  if (own.empty() || own == microbatches) return;
  const auto text = [](const microbatch_counts& counts) {
    std::string all;
    for (const auto n : counts.by_replica) all += (all.empty() ? "" : ", ") + std::to_string(n);
    return all;
  };
  throw std::runtime_error("expected the microbatches of each replica that node 0 has, " +
                           text(microbatches) + ", got " + text(own) +
                           " with the same data: its program or its processor computes others");
}

std::vector<std::uint32_t> packed_source::samples_of(step_id step, microbatch_id mb) const {
  if (is_balanced()) return balanced(step)->samples.at(mb.value());
  const std::uint64_t size = config_.data.microbatch_size;
  return order_.at(step.value() * places_ + mb.value() * size, size);
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
    const auto sizes = samples_->image_sizes(n);
    layout.images.insert(layout.images.end(), sizes.begin(), sizes.end());
  }
  return layout;
}

std::int64_t packed_source::step_tokens(step_id step) const {
  std::int64_t tokens = 0;
  const auto add = [&](const std::vector<std::uint32_t>& samples) {
    for (const auto n : samples) tokens += samples_->size(n).counted;
  };
  if (is_balanced()) {
    const auto packed = balanced(step);
    for (const auto& samples : packed->samples) add(samples);
  } else {
    add(order_.at(step.value() * places_, places_));
  }
  return tokens;
}

}  // namespace rrfp::data

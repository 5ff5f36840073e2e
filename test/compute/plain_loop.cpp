#include "plain_loop.hpp"

#include "loaded_microbatch.hpp"

#include <algorithm>
#include <cmath>
#include <memory>

#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <rrfp/job/model_rules.hpp>
#include <rrfp/torch/model.hpp>
#include <rrfp/torch/stage_compute.hpp>

namespace rrfp::compute::test {

namespace {

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const job::train_options& train,
                                                      std::vector<at::Tensor> parameters) {
  if (train.optimizer == job::optimizer_kind::sgd) {
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(train.lr)
                                                               .momentum(train.momentum)
                                                               .weight_decay(train.weight_decay));
  }
  return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(train.lr)
                                                               .betas({train.beta1, train.beta2})
                                                               .eps(train.epsilon)
                                                               .weight_decay(train.weight_decay));
}

/// Both ends of a tied model see the sum of the two gradients.
void sum_tied(std::span<const parameter> parameters) {
  const auto find = [&](tie side) {
    return std::find_if(parameters.begin(), parameters.end(),
                        [&](const parameter& p) { return p.tied == side; });
  };
  const auto owner = find(tie::owner);
  if (owner == parameters.end()) return;
  const auto copy = find(tie::copy);
  const auto sum = owner->value.grad() + copy->value.grad();
  owner->value.mutable_grad() = sum;
  copy->value.mutable_grad() = sum.clone();
}

double norm_of(std::span<const parameter> parameters) {
  double squared = 0;
  for (const auto& p : parameters) {
    if (p.tied == tie::copy || !p.value.grad().defined()) continue;
    const auto g = p.value.grad().to(at::kDouble);
    squared += (g * g).sum().item<double>();
  }
  return std::sqrt(squared);
}

}  // namespace

training_result train_plainly(const job::model_options& model, const job::train_options& train,
                              std::uint32_t microbatches, const batch_source& data,
                              std::uint64_t steps) {
  prepare_compute_thread();
  const auto whole = make_model_chunk(model, {0, job::all_layers_of(model)}, train.seed).value();
  const auto parameters = whole->parameters();
  std::vector<at::Tensor> values;
  for (const auto& p : parameters) values.push_back(p.value);
  const auto optimizer = optimizer_of(train, values);

  training_result result;
  for (std::uint64_t step = 0; step < steps; ++step) {
    optimizer->zero_grad();
    const auto total = static_cast<double>(data.step_tokens(step_id{step}));
    for (std::uint32_t mb = 0; mb < microbatches; ++mb) {
      loaded_microbatch view(data.load(step_id{step}, microbatch_id{mb}));
      const auto& batch = view.whole();
      const auto sum = whole->forward({.input = batch.inputs,
                                       .targets = batch.targets,
                                       .step = step_id{step},
                                       .mb = microbatch_id{mb},
                                       .stash = nullptr,
                                       .batch = &view});
      (sum / total).backward();
      result.losses.push_back(sum.item<double>() / static_cast<double>(batch.tokens));
    }
    sum_tied(parameters);
    result.norms.push_back(norm_of(parameters));
    if (train.clip_norm > 0 && result.norms.back() > train.clip_norm) {
      for (const auto& v : values)
        v.mutable_grad().mul_(train.clip_norm / (result.norms.back() + 1e-6));
    }
    optimizer->step();
  }
  for (const auto& p : parameters) result.weights.emplace(p.name, p.value.detach().clone());
  return result;
}

}  // namespace rrfp::compute::test

/// A small model of plain tensors that can be split anywhere, and the plain loop that it must
/// equal.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <rrfp/actors/trace.hpp>
#include <rrfp/core/policy.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/pipeline.hpp>
#include <rrfp/policies/registry.hpp>
#include <rrfp/torch/optimizer.hpp>
#include <rrfp/torch/stage_module.hpp>
#include <rrfp/torch/tensors.hpp>
#include <rrfp/transport/transport.hpp>

namespace rrfp::testing {

constexpr std::int64_t layers = 4, width = 16;

inline at::Tensor weight_of(std::int64_t layer) {
  const auto n = at::arange(width * width, at::kFloat).view({width, width});
  return at::sin(n * 0.37 + static_cast<double>(layer)).mul_(0.3).requires_grad_();
}

/// Layers [first, end); every other layer has a deferred weight gradient.
inline stage layers_of(std::int64_t first, std::int64_t end) {
  stage s;
  for (auto i = first; i < end; ++i)
    s.parameters.emplace_back("layers." + std::to_string(i), weight_of(i));
  s.forward = [first, weights = s.parameters](const at::Tensor& input) {
    auto x = input;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const auto& w = weights[i].second;
      x = x + at::tanh((first + static_cast<std::int64_t>(i)) % 2 == 0 ? rrfp::linear(x, w)
                                                                       : at::linear(x, w));
    }
    return x;
  };
  return s;
}

inline stage part_at(const stage_place& at) {
  return layers_of(layers * at.index / at.count, layers * (at.index + 1) / at.count);
}

inline at::Tensor square_loss(const at::Tensor& output, const at::Tensor& target) {
  return at::mse_loss(output, target, at::Reduction::Sum);
}

inline pipeline_options small_options() {
  pipeline_options o;
  o.make_stage = part_at;
  o.loss = square_loss;
  o.on_note = [](const std::string&) {};
  return o;
}

inline batch batch_of(std::uint64_t step, std::int64_t rows = 37) {
  const auto n = at::arange(rows * width, at::kFloat).view({rows, width});
  return {at::sin(n * 0.011 + static_cast<double>(step)), at::cos(n * 0.023)};
}

inline job::job job_of(const std::string& text = {},
                       const job::schema& keys = job::runtime_schema()) {
  return job::parse_job(
             "[pipeline]\nstages = 2\nmicrobatches = 5\n[train]\nsteps = 6\nlr = 0.01\n"
             "lr_min = 0.01\nmomentum = 0.9\noptimizer = \"sgd\"\nweight_decay = 0\n"
             "clip_norm = 0\n[run]\nhang_timeout_s = 20\n" +
                 text,
             "test", policies::registry(), {}, job::job_use::embed, keys)
      .value();
}

struct plain_result {
  std::vector<double> losses;
  std::vector<double> first_losses;  ///< losses of the microbatches of the first step
  std::vector<at::Tensor> weights;
  double evaluated = 0;
};

/// The same training of the whole `model` without a pipeline, followed by an evaluation.
inline plain_result train_plainly(const stage& model, std::int64_t microbatches,
                                  std::uint64_t steps, std::int64_t rows = 37) {
  at::set_num_threads(1);
  plain_result r;
  for (const auto& p : model.parameters) r.weights.push_back(p.second);
  std::vector<at::Tensor> momentum(r.weights.size());
  const auto pass = [&](const batch& b, bool learn, std::vector<double>* each) {
    double sum = 0;
    const auto xs = at::tensor_split(b.inputs, microbatches),
               ys = at::tensor_split(b.targets, microbatches);
    for (std::size_t i = 0; i < xs.size(); ++i) {
      const auto l = square_loss(model.forward(xs[i].clone()), ys[i].clone());
      if (learn) (l / static_cast<double>(rows)).backward();
      const auto count = static_cast<double>(xs[i].size(0));
      const auto mean = l.item<double>() / count;
      if (each != nullptr) each->push_back(mean);
      sum += mean * count;
    }
    return sum / static_cast<double>(rows);
  };
  for (std::uint64_t step = 0; step < steps; ++step) {
    r.losses.push_back(pass(batch_of(step, rows), true, step == 0 ? &r.first_losses : nullptr));
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < r.weights.size(); ++i) {
      auto& w = r.weights[i];
      const auto g = w.grad();
      if (!g.defined()) continue;
      momentum[i] = momentum[i].defined() ? momentum[i].mul(0.9).add(g) : g.clone();
      w.add_(momentum[i], -0.01);
      w.mutable_grad().reset();
    }
  }
  const at::NoGradGuard no_grad;
  r.evaluated = pass(batch_of(100, rows), false, nullptr);
  return r;
}

inline plain_result train_plainly(std::int64_t microbatches, std::uint64_t steps,
                                  std::int64_t rows = 37) {
  return train_plainly(layers_of(0, layers), microbatches, steps, rows);
}

}  // namespace rrfp::testing

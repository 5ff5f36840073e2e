/// Stages under autocast equal a plain loop, in float16 with a loss scale and a planted overflow.
#include <cmath>
#include <limits>

#include <ATen/autocast_mode.h>
#include <fmt/format.h>

#include "small_model.hpp"

#include <catch2/catch.hpp>

namespace rrfp::testing {
namespace {

constexpr std::int64_t rows = 37, microbatches = 5;
constexpr std::uint64_t steps = 7, overflow = 2;
constexpr double first_scale = 1024;
constexpr std::int64_t interval = 2;

batch rows_of(std::uint64_t step) {
  auto b = batch_of(step, rows);
  if (step == overflow) b.inputs = b.inputs * 1e6;  // beyond float16
  return b;
}

struct mixed_result {
  std::vector<double> losses;
  std::vector<bool> skipped;
  std::vector<at::Tensor> weights;
};

/// By the rule of torch.amp.GradScaler.
mixed_result train_mixed(at::ScalarType type) {
  const auto model = layers_of(0, layers);
  mixed_result r;
  for (const auto& p : model.parameters) r.weights.push_back(p.second);
  std::vector<at::Tensor> momentum(r.weights.size());
  double scale = first_scale;
  std::int64_t good = 0;
  for (std::uint64_t step = 0; step < steps; ++step) {
    const auto b = rows_of(step);
    const auto xs = at::tensor_split(b.inputs, microbatches),
               ys = at::tensor_split(b.targets, microbatches);
    double sum = 0;
    for (std::size_t i = 0; i < xs.size(); ++i) {
      at::autocast::set_autocast_enabled(at::kCPU, true);
      at::autocast::set_autocast_dtype(at::kCPU, type);
      at::autocast::increment_nesting();
      const auto l = square_loss(model.forward(xs[i].clone()), ys[i].clone());
      at::autocast::decrement_nesting();
      at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
      const auto count = static_cast<double>(xs[i].size(0));
      sum += l.item<double>() / count * count;
      (l / static_cast<double>(rows) * scale).backward();
    }
    r.losses.push_back(sum / static_cast<double>(rows));
    const at::NoGradGuard no_grad;
    bool finite = true;
    for (auto& w : r.weights) {
      w.mutable_grad().mul_(static_cast<float>(1 / scale));
      finite = finite && at::isfinite(w.grad()).all().item<bool>();
    }
    for (std::size_t i = 0; i < r.weights.size(); ++i) {
      auto& w = r.weights[i];
      if (finite) {
        momentum[i] = momentum[i].defined() ? momentum[i].mul(0.9).add(w.grad()) : w.grad().clone();
        w.add_(momentum[i], -0.01);
      }
      w.mutable_grad().reset();
    }
    r.skipped.push_back(!finite);
    good = finite ? good + 1 : 0;
    if (!finite) scale /= 2;
    if (good == interval) {
      scale *= 2;
      good = 0;
    }
  }
  return r;
}

}  // namespace

TEST_CASE("autocast with a loss scale equals that of a plain loop, overflow included") {
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    const auto plain = train_mixed(type);
    REQUIRE(plain.skipped[overflow] == (type == at::kHalf));
    for (const std::string policy : {"bfw", "zb_h1", "one_f_one_b"}) {
      for (const std::uint32_t stages : {1, 2, 4}) {
        INFO(at::toString(type) << ", " << policy << ", " << stages << " stages");
        auto j = job_of("[jitter]\ncompute = \"lognormal\"\ncompute_sigma = 0.5\n");
        j.pipeline.stages = stages;
        j.dispatch.policy = policy;
        j.train.loss_scale = first_scale;
        j.train.loss_scale_interval = interval;
        auto options = small_options();
        options.autocast = type;
        std::vector<at::Tensor> weights;
        options.make_stage = [&](const stage_place& at) {
          auto s = part_at(at);
          for (const auto& p : s.parameters) weights.push_back(p.second);
          return s;
        };
        auto p = pipeline::open(j, options).value();
        for (std::uint64_t step = 0; step < steps; ++step) {
          const auto r = p->step(rows_of(step)).value();
          CHECK((r.loss == plain.losses[step] || !std::isfinite(plain.losses[step])));
          CHECK(r.is_skipped == plain.skipped[step]);
        }
        CHECK(p->finish().value().skipped_steps == (type == at::kHalf ? 1 : 0));
        REQUIRE(weights.size() == plain.weights.size());
        for (std::size_t i = 0; i < weights.size(); ++i)
          CHECK(at::equal(weights[i], plain.weights[i]));
      }
    }
  }
}

TEST_CASE("an input that autocast casts several times has the gradient of a plain loop") {
  const auto product_of = [](std::int64_t index) {
    stage s;
    for (std::int64_t i = 0; i < 2; ++i)
      s.parameters.emplace_back(fmt::format("{}.{}", index, i), weight_of(2 * index + i));
    s.forward = [w = s.parameters](const at::Tensor& input) {
      const auto x = input.to(at::kFloat);
      return x + at::linear(x, w[0].second) * at::linear(x, w[1].second);
    };
    return s;
  };
  std::vector<stage> parts{product_of(0), product_of(1), product_of(2)};
  std::vector<stage> plain{product_of(0), product_of(1), product_of(2)};
  auto j = job_of("[jitter]\ncompute = \"lognormal\"\n");
  j.pipeline.stages = 3;
  j.train.momentum = 0;
  auto options = small_options();
  options.autocast = at::kBFloat16;
  options.make_stage = [&](const stage_place& at) { return parts[at.index]; };
  auto p = pipeline::open(j, options).value();
  for (std::uint64_t step = 0; step < 3; ++step) {
    const auto b = batch_of(step);
    REQUIRE(p->step(b).ok());
    const auto xs = at::tensor_split(b.inputs, microbatches),
               ys = at::tensor_split(b.targets, microbatches);
    for (std::size_t i = 0; i < xs.size(); ++i) {
      at::autocast::set_autocast_enabled(at::kCPU, true);
      at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      at::autocast::increment_nesting();
      auto x = xs[i].clone();
      for (const auto& part : plain) x = part.forward(x);
      const auto l = square_loss(x, ys[i].clone());
      at::autocast::decrement_nesting();
      at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
      (l / static_cast<double>(rows)).backward();
    }
    const at::NoGradGuard no_grad;
    for (auto& part : plain)
      for (auto& [_, w] : part.parameters) {
        w.add_(w.grad(), -0.01);
        w.mutable_grad().reset();
      }
  }
  for (std::size_t i = 0; i < parts.size(); ++i)
    for (std::size_t n = 0; n < 2; ++n)
      CHECK(at::equal(parts[i].parameters[n].second, plain[i].parameters[n].second));
}

TEST_CASE("a training whose gradient is never finite ends") {
  auto j = job_of();
  j.train.loss_scale = first_scale;
  auto p = pipeline::open(j, small_options()).value();
  auto b = batch_of(0);
  b.inputs = b.inputs * std::numeric_limits<float>::infinity();
  result<step_result> r = p->step(b);
  for (int step = 0; step < 200 && r; ++step) {
    CHECK(r->is_skipped);
    r = p->step(b);
  }
  CHECK_THAT(r.message(), Catch::Matchers::Contains("training has diverged"));
}

}  // namespace rrfp::testing

/// Same bits as an ordinary training loop, for every number of stages and order of execution.
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <catch2/catch.hpp>

#include <rrfp/torch/model.hpp>
#include <rrfp/torch/stage_compute.hpp>

#include "pipeline.hpp"
#include "plain_loop.hpp"
#include "small_model.hpp"

namespace rrfp::compute::test {

namespace {

constexpr std::uint32_t microbatches = 5;
constexpr std::uint64_t steps = 3;

pipeline_shape shape_of(std::uint32_t stages, std::uint32_t chunks, placement layout,
                        std::uint32_t m = microbatches) {
  return {stages, chunks, m, layout};
}

void check_same(const training_result& got, const training_result& expected) {
  CHECK(got.losses == expected.losses);
  CHECK(got.norms == expected.norms);
  REQUIRE(got.weights.size() == expected.weights.size());
  for (const auto& [name, value] : expected.weights) {
    INFO(name);
    REQUIRE(got.weights.contains(name));
    CHECK(at::equal(got.weights.at(name), value));
  }
}

training_result plainly(const job::model_options& model, const job::train_options& train,
                        std::uint32_t m = microbatches) {
  prepare_compute_thread();
  return train_plainly(model, train, m, uneven_source(m), steps);
}

training_result in_stages(const job::model_options& model, const job::train_options& train,
                          const pipeline_shape& shape, pipeline_options options = {}) {
  return train_in_stages(model, train, shape, std::make_shared<uneven_source>(shape.microbatches),
                         steps, options);
}

}  // namespace

TEST_CASE("stages give the bits of a plain loop") {
  auto model = small_model();
  model.tied_head = GENERATE(false, true);
  const auto train = small_train();
  const auto expected = plainly(model, train);
  const auto shape = GENERATE(shape_of(1, 1, placement::linear), shape_of(2, 1, placement::linear),
                              shape_of(3, 1, placement::linear), shape_of(4, 1, placement::linear),
                              shape_of(2, 2, placement::interleaved), shape_of(2, 2, placement::v),
                              shape_of(1, 4, placement::interleaved));
  INFO("tied " << model.tied_head << ", stages " << shape.stages << ", chunks " << shape.chunks
               << ", " << name(shape.layout));
  check_same(in_stages(model, train, shape), expected);
}

TEST_CASE("every cut of the layers into stages gives the bits of a plain loop") {
  auto model = small_model();
  model.tied_head = true;
  const auto train = small_train();
  const auto expected = plainly(model, train);
  using cut = std::vector<std::uint32_t>;
  for (const auto& c : {cut{1, 3}, cut{3, 1}, cut{1, 1, 2}, cut{1, 2, 1}, cut{2, 1, 1}}) {
    INFO("layers of stage 0: " << c[0] << ", of stage 1: " << c[1]);
    const auto stages = static_cast<std::uint32_t>(c.size());
    check_same(in_stages(model, train, shape_of(stages, 1, placement::linear), {.cut = c}),
               expected);
  }
  // Parts 0 and 3 of the V are on stage 0.
  model.layers = 5;
  check_same(in_stages(model, train, shape_of(2, 2, placement::v), {.cut = {1, 2, 1, 1}}),
             plainly(model, train));
}

TEST_CASE("fused, split and mixed backward give the same bits in any order") {
  auto model = small_model();
  model.tied_head = true;
  const auto train = small_train();
  const auto expected = plainly(model, train);
  for (const auto backward : {split::fused, split::split, split::mixed}) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      INFO("split " << static_cast<int>(backward) << ", order " << seed);
      check_same(in_stages(model, train, shape_of(2, 1, placement::linear), {backward, seed}),
                 expected);
    }
    check_same(in_stages(model, train, shape_of(2, 1, placement::linear), {backward, 1, true}),
               expected);
  }
}

TEST_CASE("a step of one microbatch and a model of one layer give the same bits") {
  auto model = small_model();
  const auto train = small_train();
  check_same(in_stages(model, train, shape_of(4, 1, placement::linear, 1)),
             plainly(model, train, 1));
  model.layers = 1;
  check_same(in_stages(model, train, shape_of(1, 1, placement::linear)), plainly(model, train));
}

TEST_CASE("SGD with momentum and no clipping give the bits of a plain loop") {
  const auto model = small_model();
  auto train = small_train();
  train.optimizer = job::optimizer_kind::sgd;
  train.momentum = 0.9;
  train.weight_decay = 0.01;
  train.clip_norm = 0;
  check_same(in_stages(model, train, shape_of(2, 1, placement::linear)), plainly(model, train));
}

TEST_CASE("seed, dropout and order of data each change the bits") {
  // Otherwise the comparisons above would prove nothing.
  const auto model = small_model();
  const auto train = small_train();
  const auto shape = shape_of(2, 1, placement::linear);
  const auto expected = in_stages(model, train, shape);
  auto other_seed = train;
  other_seed.seed = 8;
  CHECK(in_stages(model, other_seed, shape).losses != expected.losses);
  auto less_dropout = model;
  less_dropout.dropout = 0.05;
  CHECK(in_stages(less_dropout, train, shape).losses != expected.losses);
  auto no_clip = train;
  no_clip.clip_norm = 1e9;
  CHECK(in_stages(model, no_clip, shape).losses != expected.losses);
}

TEST_CASE("both holders of a tied weight keep the same bits") {
  auto model = small_model();
  model.tied_head = true;
  const auto train = small_train();
  pipeline p(model, train, shape_of(3, 1, placement::linear),
             std::make_shared<uneven_source>(microbatches));
  const auto hash_before = p.hash();
  for (std::uint64_t step = 0; step < steps; ++step) {
    p.run_tasks(step_id{step});
    p.finish(train.lr);
  }
  CHECK(p.hash() != hash_before);
  // A snapshot names the weight once. If the last stage's copy had drifted from it, the step after
  // a restore would differ from the step without one.
  std::vector<named_buffer> state;
  for (std::size_t s = 0; s < p.stages(); ++s) {
    for (auto& t : p.stage(static_cast<std::uint32_t>(s)).snapshot()) {
      state.push_back({t.name, to_buffer(t.value.clone())});
    }
  }
  pipeline restored(model, train, shape_of(2, 2, placement::v),
                    std::make_shared<uneven_source>(microbatches));
  CHECK(restored.hash() != p.hash());
  for (std::size_t s = 0; s < restored.stages(); ++s) {
    REQUIRE(restored.stage(static_cast<std::uint32_t>(s)).restore(state).ok());
  }
  CHECK(restored.hash() == p.hash());
  for (auto* each : {&p, &restored}) {
    each->run_tasks(step_id{steps});
    each->finish(train.lr);
  }
  CHECK(restored.losses() == p.losses());
  CHECK(restored.hash() == p.hash());
}

TEST_CASE("the tied gradient is that of one shared tensor") {
  auto model = small_model();
  model.tied_head = true;
  const auto data = uneven_source(1);
  const auto batch = data.load(step_id{0}, microbatch_id{0});
  const auto run = [&](stage_module& m) {
    m.forward({batch.inputs, batch.targets, step_id{0}, microbatch_id{0}, nullptr}).backward();
  };
  const auto twins = make_model_chunk(model, nth_part(model, 0, 1), 1).value();
  run(*twins);
  const auto owner = twins->parameters().front().value;
  const auto copy = twins->parameters().back().value;
  REQUIRE(at::equal(owner, copy));
  // The same storage for both: the gradient of the loss along a direction, by finite differences.
  const auto direction = at::randn(owner.sizes(), at::make_generator<at::CPUGeneratorImpl>(3));
  const auto loss_at = [&](double t) {
    const at::NoGradGuard no_grad;
    const auto moved = make_model_chunk(model, nth_part(model, 0, 1), 1).value();
    moved->parameters().front().value.add_(direction, t);
    moved->parameters().back().value.add_(direction, t);
    return moved->forward({batch.inputs, batch.targets, step_id{0}, microbatch_id{0}, nullptr})
        .item<double>();
  };
  const double slope = (loss_at(1e-3) - loss_at(-1e-3)) / 2e-3;
  const auto expected = ((owner.grad() + copy.grad()) * direction).sum().item<double>();
  CHECK(slope == Approx(expected).epsilon(0.02));
}

TEST_CASE("training learns") {
  auto model = small_model();
  model.dropout = 0;
  auto train = small_train();
  train.lr = 3e-3;
  const auto data = std::make_shared<uneven_source>(2);
  pipeline p(model, train, shape_of(2, 1, placement::linear, 2), data);
  p.run_tasks(step_id{0});
  const auto before = p.losses();
  p.finish(train.lr);
  // An untrained model knows nothing: ln(64) nats.
  CHECK(before.front() == Approx(std::log(64.0)).epsilon(0.05));
  for (int i = 0; i < 30; ++i) {
    p.run_tasks(step_id{0});
    p.finish(train.lr);
  }
  CHECK(p.losses().front() < 0.5 * before.front());
}

TEST_CASE("a token does not attend to later ones") {
  auto model = small_model();
  model.dropout = 0;
  const auto first = make_model_chunk(model, nth_part(model, 0, 2), 1).value();
  const auto ids = at::arange(16).view({1, 16});
  const auto changed = ids.clone();
  changed[0][10] = 63;
  const auto run = [&](const at::Tensor& x) {
    return first->forward({x, {}, step_id{0}, microbatch_id{0}, nullptr});
  };
  const auto a = run(ids);
  const auto b = run(changed);
  CHECK(at::equal(a.narrow(0, 0, 10), b.narrow(0, 0, 10)));
  CHECK(!at::equal(a.narrow(0, 10, 6), b.narrow(0, 10, 6)));
}

}  // namespace rrfp::compute::test

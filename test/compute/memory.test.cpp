#include <thread>

#include <ATen/ATen.h>
#include <catch2/catch.hpp>

#include <rrfp/compute/estimate.hpp>
#include <rrfp/torch/memory_meter.hpp>

#include "pipeline.hpp"
#include "small_model.hpp"

namespace rrfp::compute::test::memory {

namespace {

constexpr std::int64_t kib = 1024;

launch launch_of(task_kind kind, std::uint32_t mb, fold_range folds = {}) {
  launch l;
  l.what = {kind, microbatch_id{mb}, chunk_id{0}};
  l.folds = folds;
  return l;
}

}  // namespace

TEST_CASE("the meter counts what its thread allocates and frees in a scope") {
  memory_meter meter;
  const auto outside = at::empty({1024});
  {
    const memory_meter::scope metering(meter);
    auto a = at::empty({1024});
    CHECK(meter.current() == 4 * kib);
    {
      const auto b = at::empty({2048});
      CHECK(meter.current() == 12 * kib);
    }
    CHECK(meter.current() == 4 * kib);
    CHECK(meter.peak() == 12 * kib);
    std::thread([] { at::empty({4096}); }).join();
    CHECK(meter.peak() == 12 * kib);
    a.reset();
    CHECK(meter.current() == 0);
  }
  const auto after = at::empty({1024});
  CHECK(meter.current() == 0);
  meter.reset_peak();
  CHECK(meter.peak() == 0);
}

TEST_CASE("tensors from and to other threads are counted while this thread holds them") {
  memory_meter meter;
  auto arrived = at::ones({1024});
  {
    const memory_meter::scope metering(meter);
    auto mine = meter.take_in(std::move(arrived));
    CHECK(meter.current() == 4 * kib);
    CHECK(mine.sum().item<double>() == 1024);
    const auto view = mine.view({32, 32});
    mine.reset();
    CHECK(meter.current() == 4 * kib);  // a view still holds it
  }
  CHECK(meter.current() == 0);

  at::Tensor sent;
  {
    const memory_meter::scope metering(meter);
    sent = at::empty({1024});
    meter.hand_out(sent);
    CHECK(meter.current() == 0);
  }
  std::thread([&] { sent.reset(); }).join();
  CHECK(meter.current() == 0);
}

TEST_CASE("a stage's memory follows its microbatches") {
  auto model = small_model();
  model.dropout = GENERATE(0.0, 0.1);
  const auto data = std::make_shared<uneven_source>(3);
  pipeline p(model, small_train(), {1, 1, 3, placement::linear}, data);
  auto& stage = p.stage(0);
  const auto& meter = stage.meter();
  const auto finish = [&] {
    stage.squared_norms();
    stage.apply(1.0, 1e-3);
  };

  // Split: with W pending the microbatches still hold memory, more than with a fused backward.
  stage.begin_step(step_id{0});
  CHECK(meter.current() == 0);
  stage.run(launch_of(task_kind::forward, 0), {});
  const auto one_forward = meter.current();

  // The estimate matches the bytes held, within a few small tensors.
  job::data_options sizes;
  sizes.microbatch_size = 2;
  sizes.sequence_length = 16;
  const auto expected = estimate(model, expected_layout(model, sizes), {model.layers}).front();
  CHECK(static_cast<double>(one_forward) ==
        Approx(static_cast<double>(expected.activation_bytes)).epsilon(0.01));

  stage.run(launch_of(task_kind::backward, 0), {});
  CHECK(static_cast<double>(meter.current()) ==
        Approx(static_cast<double>(expected.pending_weight_bytes)).epsilon(0.01));
  stage.run(launch_of(task_kind::forward, 1), {});
  stage.run(launch_of(task_kind::backward, 1), {});
  const auto two_pending = meter.current();
  CHECK(two_pending > one_forward);
  stage.run(launch_of(task_kind::weight, 1), {});  // not its turn yet
  CHECK(meter.current() == two_pending);
  stage.run(launch_of(task_kind::weight, 0, {microbatch_id{0}, 2}), {});
  CHECK(meter.current() == 0);
  stage.run(launch_of(task_kind::forward, 2), {});
  stage.run(launch_of(task_kind::backward_weight, 2, {microbatch_id{2}, 1}), {});
  CHECK(meter.current() == 0);
  finish();
  CHECK(meter.current() == 0);
  const auto split_peak = meter.peak();

  stage.begin_step(step_id{1});
  for (std::uint32_t mb = 0; mb < 3; ++mb) {
    stage.run(launch_of(task_kind::forward, mb), {});
    stage.run(launch_of(task_kind::backward_weight, mb, {microbatch_id{mb}, 1}), {});
    CHECK(meter.current() == 0);
  }
  finish();
  CHECK(meter.peak() < split_peak);
}

TEST_CASE("a stage does not hold what it sends, but holds what it receives") {
  const pipeline_shape shape{2, 1, 1, placement::linear};
  const auto data = std::make_shared<uneven_source>(1);
  pipeline p(small_model(), small_train(), shape, data);
  job::data_options sizes;
  sizes.microbatch_size = 2;
  sizes.sequence_length = 16;
  const auto expected = estimate(small_model(), expected_layout(small_model(), sizes), {2, 2});
  const auto check = [&](std::uint32_t s, std::uint64_t bytes) {
    INFO("stage " << s);
    CHECK(static_cast<double>(p.stage(s).meter().current()) ==
          Approx(static_cast<double>(bytes)).epsilon(0.01));
  };
  p.stage(0).begin_step(step_id{0});
  p.stage(1).begin_step(step_id{0});
  auto activation = p.stage(0).run(launch_of(task_kind::forward, 0), {});
  CHECK(activation.bytes() == expected[0].boundary_bytes);
  check(0, expected[0].activation_bytes);
  p.stage(1).run(launch_of(task_kind::forward, 0), std::move(activation));
  check(1, expected[1].activation_bytes);
  auto gradient = p.stage(1).run(launch_of(task_kind::backward, 0), {});
  check(1, expected[1].pending_weight_bytes);
  p.stage(0).run(launch_of(task_kind::backward, 0), std::move(gradient));
  check(0, expected[0].pending_weight_bytes);
}

TEST_CASE("every stage of a pipeline ends a step at zero") {
  const auto data = std::make_shared<uneven_source>(3);
  pipeline p(small_model(), small_train(), {2, 1, 3, placement::linear}, data);
  for (std::uint64_t step = 0; step < 2; ++step) {
    p.run_tasks(step_id{step});
    for (std::uint32_t s = 0; s < 2; ++s) {
      CHECK(p.stage(s).meter().current() == 0);
      CHECK(p.stage(s).meter().peak() > 0);
    }
    p.finish(1e-3);
  }
}

}  // namespace rrfp::compute::test::memory

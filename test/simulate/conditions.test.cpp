#include <algorithm>
#include <cmath>
#include <vector>

#include <catch2/catch.hpp>

#include <rrfp/simulate/conditions.hpp>

#include "../support/tasks.hpp"
#include "sample.hpp"

namespace rrfp::simulate {

using rrfp::testing::make_task;
using testing::draws;

namespace {

/// Four stages of one chunk.
pipeline_shape shape_of(std::uint32_t microbatches) {
  return {4, 1, microbatches, placement::linear};
}

double link(const disturbed_times& w, std::uint32_t mb, double own_ms = 1) {
  return w.link_ms(step_id{0}, virtual_stage_id{1}, rank_id{0}, make_task(task_kind::forward, mb),
                   own_ms);
}

double compute(const disturbed_times& w, std::uint32_t stage, const task& what,
               std::uint32_t ranks = 1) {
  return w.compute_ms(step_id{0}, stage_id{stage}, {0, ranks}, what, 10, 10);
}

struct spreads {
  double outer = 0;  ///< (p95 - p5) / p50
  double inner = 0;  ///< (p75 - p25) / p50
};

spreads of(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  const auto at = [&](double p) { return x[static_cast<std::size_t>(p * double(x.size()))]; };
  return {(at(0.95) - at(0.05)) / at(0.5), (at(0.75) - at(0.25)) / at(0.5)};
}

template <class Draw>
spreads spreads_of(Draw draw) {
  std::vector<double> all;
  for (std::uint32_t mb = 0; mb < draws; ++mb) all.push_back(draw(mb));
  return of(std::move(all));
}

}  // namespace

TEST_CASE("measured communication has both spreads of the paper") {
  const disturbed_times w{*conditions_of("measured"), shape_of(draws)};
  const auto s = spreads_of([&](std::uint32_t mb) { return link(w, mb, 0.3); });
  CHECK(s.outer == Approx(58.74).epsilon(0.01));
  CHECK(s.inner == Approx(50.80).epsilon(0.01));
}

TEST_CASE("stalls may have a length independent of the message") {
  auto c = *conditions_of("measured");
  c.stall_unit_ms = 0.4;
  const disturbed_times w{c, shape_of(draws)};
  const auto same = spreads_of([&](std::uint32_t mb) { return link(w, mb, 0.4); });
  CHECK(same.outer == Approx(58.74).epsilon(0.01));
  for (std::uint32_t mb = 0; mb < 1000; ++mb)
    CHECK(link(w, mb, 5) - 5 == Approx(link(w, mb, 0.4) - 0.4).margin(1e-9));
}

TEST_CASE("measured log-normal communication has only the outer spread of the paper") {
  const disturbed_times w{*conditions_of("measured-lognormal"), shape_of(draws)};
  const auto s = spreads_of([&](std::uint32_t mb) { return link(w, mb, 0.3); });
  CHECK(s.outer == Approx(58.74).epsilon(0.03));
  CHECK(s.inner == Approx(5.13).epsilon(0.03));
}

TEST_CASE("measured compute has both spreads of the paper within 10 %") {
  const disturbed_times w{*conditions_of("measured"), shape_of(draws)};
  const auto s = spreads_of(
      [&](std::uint32_t mb) { return compute(w, 0, make_task(task_kind::forward, mb)); });
  CHECK(s.outer == Approx(0.73).epsilon(0.10));
  CHECK(s.inner == Approx(0.35).epsilon(0.10));
}

TEST_CASE("every name of conditions is known, and J0 and none disturb nothing") {
  for (const auto* name : {"none", "J0"}) {
    const disturbed_times w{*conditions_of(name), shape_of(8)};
    CHECK(compute(w, 0, make_task(task_kind::forward)) == 10);
    CHECK(link(w, 3, 0.5) == 0.5);
  }
  CHECK(conditions_of("J3")->alpha == 1.5);
  CHECK_FALSE(conditions_of("J4"));
  CHECK_FALSE(conditions_of("sunny"));
}

TEST_CASE("all tasks of a straggler are slow, and no tasks of other stages") {
  conditions c;
  c.straggler_stage = 2;
  c.straggler_factor = 3;
  const disturbed_times w{c, shape_of(8)};
  CHECK(compute(w, 2, make_task(task_kind::forward)) == 30);
  CHECK(compute(w, 2, make_task(task_kind::weight, 5)) == 30);
  CHECK(compute(w, 1, make_task(task_kind::forward)) == 10);
}

TEST_CASE("a rank pauses once per step, before an F, in any order of execution") {
  conditions c;
  c.pause_stage = 1;
  c.pause_ms = 500;
  const disturbed_times w{c, shape_of(8)};
  int paused = 0;
  for (std::uint32_t mb = 0; mb < 8; ++mb) {
    paused += compute(w, 1, make_task(task_kind::forward, mb)) == 510;
    CHECK(compute(w, 1, make_task(task_kind::backward, mb)) == 10);
    CHECK(compute(w, 0, make_task(task_kind::forward, mb)) == 10);
  }
  CHECK(paused == 1);
}

TEST_CASE("a slow link is slow in both directions, and no other link is") {
  conditions c;
  c.slow_link_stage = 1;
  c.slow_link_factor = 4;
  const disturbed_times w{c, shape_of(8)};
  const auto ms = [&](std::uint32_t to, task_kind kind) {
    return w.link_ms(step_id{0}, virtual_stage_id{to}, rank_id{0}, make_task(kind), 2);
  };
  CHECK(ms(2, task_kind::forward) == 8);
  CHECK(ms(1, task_kind::backward) == 8);
  CHECK(ms(1, task_kind::forward) == 2);
  CHECK(ms(2, task_kind::backward) == 2);
  CHECK(ms(0, task_kind::backward) == 2);
}

TEST_CASE("with chunks, a slow link connects two stages, whichever of their chunks use it") {
  conditions c;
  c.slow_link_stage = 1;
  c.slow_link_factor = 4;
  const disturbed_times w{c, {3, 2, 8, placement::interleaved}};
  const auto ms = [&](std::uint32_t to, task_kind kind) {
    return w.link_ms(step_id{0}, virtual_stage_id{to}, rank_id{0}, make_task(kind), 2);
  };
  CHECK(ms(5, task_kind::forward) == 8);   // chunk 1 of stage 1 to stage 2
  CHECK(ms(4, task_kind::backward) == 8);  // and back
  CHECK(ms(3, task_kind::forward) == 2);   // stage 2 to stage 0
  CHECK(ms(4, task_kind::forward) == 2);
}

TEST_CASE("messages are lost with the given probability, and each loss costs one resend") {
  conditions c;
  c.loss_probability = 0.25;
  c.resend_ms = 30;
  const disturbed_times w{c, shape_of(draws)};
  double losses = 0;
  for (std::uint32_t mb = 0; mb < 20'000; ++mb) {
    const auto t = make_task(task_kind::forward, mb);
    const auto late_ms = w.link_ms(step_id{0}, virtual_stage_id{1}, rank_id{0}, t, 2) - 2;
    CHECK(std::fmod(late_ms, 30) == 0);
    losses += late_ms / 30 / 20'000.0;
  }
  CHECK(losses == Approx(0.25 / 0.75).epsilon(0.05));
  const disturbed_times calm{conditions{}, shape_of(8)};
  CHECK(calm.link_ms(step_id{0}, virtual_stage_id{1}, rank_id{0}, make_task(task_kind::forward),
                     2) == 2);
}

TEST_CASE("the slowest rank ends a task") {
  const disturbed_times w{*conditions_of("measured"), shape_of(draws)};
  double one = 0;
  double four = 0;
  for (std::uint32_t mb = 0; mb < 1000; ++mb) {
    const auto t = make_task(task_kind::forward, mb);
    CHECK(compute(w, 0, t, 4) >= compute(w, 0, t, 1));
    one += compute(w, 0, t, 1) / 1000;
    four += compute(w, 0, t, 4) / 1000;
  }
  CHECK(one == Approx(10).epsilon(0.03));
  CHECK(four > 12);
}

TEST_CASE("each rank draws its own tasks, messages, losses and pause") {
  auto c = *conditions_of("measured");
  c.link = link_jitter::exponential;
  c.link_mean_ms = 1;
  c.pause_stage = 0;
  c.pause_ms = 1e5;
  constexpr std::uint32_t ranks = 4;
  const disturbed_times w{c, shape_of(draws), ranks};
  conditions lossy;
  lossy.loss_probability = 0.5;
  const disturbed_times with_losses{lossy, shape_of(draws), ranks};
  const auto link_ms = [](const disturbed_times& of, std::uint32_t rank, const task& t) {
    return of.link_ms(step_id{0}, virtual_stage_id{1}, rank_id{rank}, t, 2);
  };
  int equal = 0;
  int paused = 0;
  std::array<int, 20> losses_that_differ{};
  for (std::uint32_t mb = 0; mb < draws; ++mb) {
    const auto t = make_task(task_kind::forward, mb);
    double slowest = 0;
    for (std::uint32_t r = 0; r < ranks; ++r) {
      const auto ms = w.compute_ms(step_id{0}, stage_id{0}, {r, 1}, t, 10, 10);
      slowest = std::max(slowest, ms);
      paused += ms > 1e5;
      if (r == 0) continue;
      equal += ms == w.compute_ms(step_id{0}, stage_id{0}, {0, 1}, t, 10, 10);
      equal += link_ms(w, r, t) == link_ms(w, 0, t);
      losses_that_differ[mb % 20] += link_ms(with_losses, r, t) != link_ms(with_losses, 0, t);
    }
    if (slowest < 1e5)
      CHECK(w.compute_ms(step_id{0}, stage_id{0}, {0, ranks}, t, 10, 10) == slowest);
  }
  CHECK(equal == 0);
  CHECK(paused == 1);
  for (const auto differ : losses_that_differ) CHECK(differ > 0);
}

TEST_CASE("splitting backward changes no disturbance") {
  for (const auto* name : {"measured", "J3"}) {
    const disturbed_times w{*conditions_of(name), shape_of(8)};
    for (std::uint32_t mb = 0; mb < 50; ++mb) {
      const auto at = [&](task_kind kind) {
        return w.compute_ms(step_id{0}, stage_id{0}, {0, 2}, make_task(kind, mb), 5, 5);
      };
      const auto fused = w.fused_ms(step_id{0}, stage_id{0}, {0, 2},
                                    make_task(task_kind::backward_weight, mb), 5, 5, 5);
      CHECK(fused == Approx(at(task_kind::backward) + at(task_kind::weight)));
      CHECK(w.link_ms(step_id{0}, virtual_stage_id{0}, rank_id{0},
                      make_task(task_kind::backward_weight, mb),
                      1) == w.link_ms(step_id{0}, virtual_stage_id{0}, rank_id{0},
                                      make_task(task_kind::backward, mb), 1));
    }
  }
}

}  // namespace rrfp::simulate

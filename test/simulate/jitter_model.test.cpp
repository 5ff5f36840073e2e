#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include <catch2/catch.hpp>

#include <rrfp/simulate/conditions.hpp>

#include "../support/tasks.hpp"
#include "sample.hpp"

namespace rrfp::simulate {

namespace {

using rrfp::testing::make_task;
using testing::draws, testing::sample;

constexpr pipeline_shape shape{4, 1, 8};

conditions of_compute(compute_jitter kind) {
  conditions options;
  options.compute = kind;
  return options;
}

conditions of_link(link_jitter kind, double mean_ms) {
  conditions options;
  options.link = kind;
  options.link_mean_ms = mean_ms;
  return options;
}

double extra(const disturbed_times& f, const task& what, double expected_ms = 1,
             double average_ms = 1) {
  return f.compute_extra_ms(step_id{0}, stage_id{0}, rank_id{0}, what, expected_ms, average_ms);
}

double link_extra(const disturbed_times& f, const task& what) {
  return f.link_extra_ms(step_id{0}, virtual_stage_id{1}, rank_id{0}, what);
}

}  // namespace

TEST_CASE("without jitter, nothing takes longer") {
  const disturbed_times calm{{}, shape};
  CHECK(extra(calm, make_task(task_kind::forward)) == 0);
  CHECK(link_extra(calm, make_task(task_kind::forward)) == 0);
}

TEST_CASE("the log-normal factor has mean 1 and the given spread of its logarithm") {
  for (const auto sigma : {0.1, 0.3, 1.0}) {
    auto options = of_compute(compute_jitter::lognormal);
    options.compute_sigma = sigma;
    const disturbed_times f{options, shape};
    sample factor;
    sample logarithm;
    for (std::uint32_t mb = 0; mb < draws; ++mb) {
      const auto x = extra(f, make_task(task_kind::forward, mb), 4.0);
      REQUIRE(x > -4.0);
      factor.add((4.0 + x) / 4.0);
      logarithm.add(std::log((4.0 + x) / 4.0));
    }
    CHECK(factor.mean() == Approx(1).epsilon(0.015));
    CHECK(logarithm.deviation() == Approx(sigma).epsilon(0.02));
  }
}

TEST_CASE("the paper's delay has its probability and stays in its range") {
  auto options = of_compute(compute_jitter::paper);
  options.probability = 0.2;
  options.floor_ms = 10;
  options.alpha = 1.5;
  const disturbed_times f{options, shape};
  for (const auto average_ms : {2.0, 30.0}) {
    const auto unit = 1.5 * std::max(10.0, average_ms);
    sample delayed;
    sample delay;
    for (std::uint32_t mb = 0; mb < draws; ++mb) {
      const auto x = extra(f, make_task(task_kind::forward, mb), 1, average_ms);
      delayed.add(x > 0 ? 1 : 0);
      if (x == 0) continue;
      REQUIRE(x >= 0.5 * unit);
      REQUIRE(x < 1.5 * unit);
      delay.add(x);
    }
    CHECK(delayed.mean() == Approx(0.2).margin(0.005));
    CHECK(delay.mean() == Approx(unit).epsilon(0.01));
    CHECK(delay.deviation() == Approx(unit * std::sqrt(1.0 / 12)).epsilon(0.02));
  }
}

TEST_CASE("lognormal+paper adds the paper's delays to the same log-normal times, but none to W") {
  auto options = of_compute(compute_jitter::lognormal_and_paper);
  options.probability = 0.3;
  options.floor_ms = 15;
  options.alpha = 1.5;
  const disturbed_times both{options, shape};
  const disturbed_times lognormal{of_compute(compute_jitter::lognormal), shape};
  const auto delayed = [&](task_kind kind) {
    sample s;
    for (std::uint32_t mb = 0; mb < draws; ++mb) {
      const auto delay =
          extra(both, make_task(kind, mb), 4) - extra(lognormal, make_task(kind, mb), 4);
      REQUIRE((delay == Approx(0).margin(1e-9) || delay >= 0.5 * 1.5 * 15 - 1e-9));
      s.add(delay);
    }
    return s;
  };
  CHECK(delayed(task_kind::forward).mean() == Approx(0.3 * 1.5 * 15).epsilon(0.02));
  CHECK(delayed(task_kind::backward).mean() == Approx(0.3 * 1.5 * 15).epsilon(0.02));
  CHECK(delayed(task_kind::weight).mean() == 0);
}

TEST_CASE("every link distribution keeps the mean and has its own spread") {
  const auto of_draws = [](const conditions& options) {
    const disturbed_times f{options, shape};
    sample s;
    for (std::uint32_t mb = 0; mb < draws; ++mb) {
      const auto x = link_extra(f, make_task(task_kind::forward, mb));
      REQUIRE(x >= 0);
      s.add(x);
    }
    return s;
  };
  constexpr double mean_ms = 0.3;
  const auto constant = of_draws(of_link(link_jitter::constant, mean_ms));
  CHECK(constant.mean() == Approx(mean_ms));
  CHECK(constant.deviation() == Approx(0).margin(1e-9));
  const auto exponential = of_draws(of_link(link_jitter::exponential, mean_ms));
  CHECK(exponential.mean() == Approx(mean_ms).epsilon(0.01));
  CHECK(exponential.deviation() == Approx(mean_ms).epsilon(0.02));
  auto options = of_link(link_jitter::lognormal, mean_ms);
  options.link_sigma = 0.5;
  const auto lognormal = of_draws(options);
  CHECK(lognormal.mean() == Approx(mean_ms).epsilon(0.01));
  CHECK(lognormal.deviation() == Approx(mean_ms * std::sqrt(std::exp(0.25) - 1)).epsilon(0.03));
  options = of_link(link_jitter::pareto, mean_ms);
  options.link_alpha = 3;
  const auto pareto = of_draws(options);
  CHECK(pareto.mean() == Approx(mean_ms).epsilon(0.01));
  CHECK(pareto.deviation() == Approx(mean_ms / std::sqrt(3.0)).epsilon(0.15));
}

TEST_CASE("the Pareto tail is as heavy as its index says") {
  auto options = of_link(link_jitter::pareto, 0.3);
  options.link_alpha = 1.5;
  const disturbed_times f{options, shape};
  constexpr double smallest = 0.1;  // mean (alpha - 1) / alpha
  std::uint32_t beyond = 0;
  double least = std::numeric_limits<double>::max();
  for (std::uint32_t mb = 0; mb < draws; ++mb) {
    const auto x = link_extra(f, make_task(task_kind::forward, mb));
    least = std::min(least, x);
    if (x > 10 * smallest) ++beyond;
  }
  CHECK(least == Approx(smallest).epsilon(0.001));
  CHECK(beyond == Approx(draws * std::pow(10, -1.5)).epsilon(0.05));
}

TEST_CASE("a draw does not depend on earlier draws") {
  auto options = of_compute(compute_jitter::lognormal);
  options.link = link_jitter::exponential;
  options.link_mean_ms = 1;
  const disturbed_times f{options, shape};
  std::vector<std::uint32_t> order(1000);
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto all = [&] {
    std::vector<double> drawn(2 * order.size());
    for (const auto i : order) {
      drawn[2 * i] = extra(f, make_task(task_kind::backward, i));
      drawn[2 * i + 1] = link_extra(f, make_task(task_kind::backward, i));
    }
    return drawn;
  };
  const auto in_order = all();
  std::shuffle(order.begin(), order.end(), std::mt19937{7});
  CHECK(all() == in_order);
}

TEST_CASE("every word of the key changes the delay") {
  auto options = of_compute(compute_jitter::lognormal);
  std::set<double> seen;
  const auto add = [&](const disturbed_times& f, std::uint64_t step, std::uint32_t stage,
                       std::uint32_t rank, const task& what) {
    const auto x = f.compute_extra_ms(step_id{step}, stage_id{stage}, rank_id{rank}, what, 1, 1);
    return seen.insert(x).second;
  };
  const disturbed_times f{options, shape};
  const auto base = make_task(task_kind::forward, 5, 1);
  CHECK(add(f, 1, 2, 3, base));
  CHECK(add(f, 2, 2, 3, base));
  CHECK(add(f, 1, 3, 3, base));
  CHECK(add(f, 1, 3, 2, base));
  CHECK(add(f, 1, 2, 3, make_task(task_kind::forward, 6, 1)));
  CHECK(add(f, 1, 2, 3, make_task(task_kind::forward, 5, 2)));
  CHECK(add(f, 1, 2, 3, make_task(task_kind::backward, 5, 1)));
  CHECK(add(f, 1, 2, 3, make_task(task_kind::weight, 5, 1)));
  options.seed = 2;
  CHECK(add(disturbed_times{options, shape}, 1, 2, 3, base));
}

TEST_CASE("every word of a link's key changes its delay") {
  const auto options = of_link(link_jitter::exponential, 1);
  const disturbed_times f{options, shape};
  std::set<double> seen;
  for (const auto kind : {task_kind::forward, task_kind::backward})
    for (std::uint64_t step = 0; step < 3; ++step)
      for (std::uint32_t to = 0; to < 3; ++to)
        for (std::uint32_t mb = 0; mb < 3; ++mb) {
          const auto x =
              f.link_extra_ms(step_id{step}, virtual_stage_id{to}, rank_id{0}, make_task(kind, mb));
          CHECK(seen.insert(x).second);
        }
}

TEST_CASE("a link and a task with the same numbers have independent draws") {
  auto options = of_compute(compute_jitter::lognormal);
  options.link = link_jitter::lognormal;
  options.link_mean_ms = 1;
  options.link_sigma = options.compute_sigma;
  const disturbed_times f{options, shape};
  double together = 0;
  for (std::uint32_t mb = 0; mb < 10'000; ++mb) {
    const auto task_part = extra(f, make_task(task_kind::forward, mb));
    const auto link_part = f.link_extra_ms(step_id{0}, virtual_stage_id{0}, rank_id{0},
                                           make_task(task_kind::forward, mb)) -
                           1;
    together += task_part * link_part;
  }
  CHECK(together / 10'000 == Approx(0).margin(0.005));
}

TEST_CASE("splitting backward changes no delay") {
  auto options = of_compute(compute_jitter::lognormal);
  options.link = link_jitter::exponential;
  options.link_mean_ms = 1;
  const auto fused = make_task(task_kind::backward_weight, 9);
  const auto split = make_task(task_kind::backward, 9);
  const disturbed_times f{options, shape};
  CHECK(link_extra(f, fused) == link_extra(f, split));
  CHECK(extra(f, fused, 2) == extra(f, split, 2));

  // The paper treats a fused backward as one task: it gets the delay of its B.
  options.compute = compute_jitter::paper;
  options.probability = 1;
  const disturbed_times paper{options, shape};
  CHECK(extra(paper, split) > 0);
  CHECK(extra(paper, fused) == extra(paper, split));
  CHECK(extra(paper, make_task(task_kind::weight, 9)) == 0);
}

}  // namespace rrfp::simulate

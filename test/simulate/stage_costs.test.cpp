#include <array>

#include "support.hpp"

namespace rrfp::simulate {

using namespace testing;

namespace {

nanoseconds compute(const stage_costs& costs, std::uint32_t stage, const task& what,
                    std::uint64_t step = 0) {
  return costs.compute(step_id{step}, stage_id{stage}, what);
}

}  // namespace

TEST_CASE(
    "one entry applies to all, one per stage to its chunks, one per virtual stage to itself") {
  const pipeline_shape shape{2, 2, 1, placement::v};
  const auto forward = [&](std::vector<double> ms) {
    stage_costs_options options;
    options.durations.clear();
    for (const auto x : ms) options.durations.push_back({x, 1, 1});
    const auto costs = stage_costs(shape, options);
    std::vector<nanoseconds> of_places;
    for (std::uint32_t s = 0; s < 2; ++s)
      for (std::uint32_t c = 0; c < 2; ++c)
        of_places.push_back(compute(costs, s, make_task(task_kind::forward, 0, c)) / 1'000'000);
    return of_places;
  };
  CHECK(forward({7}) == std::vector<nanoseconds>{7, 7, 7, 7});
  CHECK(forward({1, 2}) == std::vector<nanoseconds>{1, 1, 2, 2});
  CHECK(forward({1, 2, 3, 4}) == std::vector<nanoseconds>{1, 4, 2, 3});
}

TEST_CASE("a fused backward is the sum of its parts") {
  stage_costs_options options;
  options.durations = {{0.000001, 0.25, 1.5}};
  const auto costs = stage_costs(linear(1, 1), options);
  CHECK(compute(costs, 0, make_task(task_kind::forward)) == 1);
  CHECK(compute(costs, 0, make_task(task_kind::backward)) == 250'000);
  CHECK(compute(costs, 0, make_task(task_kind::weight)) == 1'500'000);
  CHECK(compute(costs, 0, make_task(task_kind::backward_weight)) == 1'750'000);
}

TEST_CASE("messages take the time of their direction plus jitter") {
  stage_costs_options options;
  options.activation_ms = 0.5;
  options.gradient_ms = 0.25;
  const auto at = [](const stage_costs& costs, const task& what) {
    return costs.link(step_id{0}, virtual_stage_id{1}, what);
  };
  CHECK(at(stage_costs(linear(3, 1), options), make_task(task_kind::forward)) == 500'000);
  CHECK(at(stage_costs(linear(3, 1), options), make_task(task_kind::backward)) == 250'000);
  options.jitter.link = simulate::link_jitter::constant;
  options.jitter.link_mean_ms = 0.125;
  CHECK(at(stage_costs(linear(3, 1), options), make_task(task_kind::forward)) == 625'000);
  CHECK(at(stage_costs(linear(3, 1), options).undisturbed(), make_task(task_kind::forward)) ==
        500'000);
}

TEST_CASE("log-normal jitter: splitting W off changes no amount of work") {
  const auto shape = linear(3, 20);
  auto costs = jittered_costs(shape, 5);
  for (std::uint32_t mb = 0; mb < shape.microbatches; ++mb) {
    const auto parts = compute(costs, 1, make_task(task_kind::backward, mb)) +
                       compute(costs, 1, make_task(task_kind::weight, mb));
    CHECK(std::abs(compute(costs, 1, make_task(task_kind::backward_weight, mb)) - parts) <= 1);
    CHECK(compute(costs, 1, make_task(task_kind::backward, mb)) !=
          compute(costs, 1, make_task(task_kind::weight, mb)));
  }
  CHECK(compute(costs.undisturbed(), 1, make_task(task_kind::forward)) == 1'000'000);
}

TEST_CASE("the moving average is the paper's over F and fused BW, in the canonical order") {
  const pipeline_shape shape{2, 2, 30, placement::interleaved};
  stage_costs_options options;
  options.durations = {{1, 2, 3}, {20, 30, 40}, {5, 6, 7}, {50, 10, 60}};
  options.jitter.compute = simulate::compute_jitter::paper;
  options.jitter.probability = 1;
  options.jitter.floor_ms = 0;
  options.jitter.alpha = 2;
  const auto costs = stage_costs(shape, options);
  const simulate::disturbed_times jitter{options.jitter, shape};
  const step_id step{3};
  for (std::uint32_t s = 0; s < shape.stages; ++s) {
    const stage_id stage{s};
    double e = options.durations[s].forward_ms;
    for (std::uint32_t mb = 0; mb < shape.microbatches; ++mb) {
      for (std::uint32_t c = 0; c < shape.chunks; ++c) {
        const auto& d = options.durations[shape.virtual_stage(stage, chunk_id{c}).value()];
        const auto check = [&](task_kind kind, double ms) {
          const auto what = make_task(kind, mb, c);
          const auto extra = jitter.compute_extra_ms(step, stage, rank_id{0}, what, ms, e);
          CHECK(static_cast<double>(compute(costs, s, what, 3)) == Approx((ms + extra) * 1e6));
        };
        e = 0.9 * e + 0.1 * d.forward_ms;
        check(task_kind::forward, d.forward_ms);
        e = 0.9 * e + 0.1 * (d.backward_ms + d.weight_ms);
        check(task_kind::backward, d.backward_ms);
        check(task_kind::backward_weight, d.backward_ms + d.weight_ms);
        check(task_kind::weight, d.weight_ms);
      }
    }
  }
}

TEST_CASE("a message that follows one with its shape takes both times, each with its own stall") {
  class told final : public microbatch_costs {
   public:
    double task_ms(step_id, stage_id, task_kind, microbatch_id) const override { return 1; }
    double message_ms(step_id, stage_id, microbatch_id) const override { return 2; }
    std::optional<double> shape_ms(stage_id lower) const override {
      return lower == stage_id{1} ? std::optional{0.5} : std::nullopt;
    }
    std::uint64_t activation_bytes(step_id, stage_id, microbatch_id) const override { return 0; }
    std::uint64_t message_bytes(step_id, stage_id lower, microbatch_id mb) const override {
      return 10 * lower.value() + mb.value();
    }
  };
  stage_costs_options options;
  options.by_microbatch = std::make_shared<told>();
  const auto shape = linear(3, 1000);
  const auto link_ms = [&](std::uint32_t to, task_kind kind, std::uint32_t mb) {
    const auto costs = stage_costs(shape, options);
    return static_cast<double>(costs.link(step_id{0}, virtual_stage_id{to}, make_task(kind, mb))) /
           1e6;
  };
  CHECK(link_ms(1, task_kind::forward, 0) == 2);
  CHECK(link_ms(2, task_kind::forward, 0) == 2.5);
  CHECK(link_ms(1, task_kind::backward_weight, 0) == 2.5);
  const auto bytes = [&](std::uint32_t to, task_kind kind, std::uint32_t mb) {
    return stage_costs(shape, options)
        .message_bytes(step_id{0}, virtual_stage_id{to}, make_task(kind, mb));
  };
  CHECK(bytes(2, task_kind::forward, 3) == 13);
  CHECK(bytes(1, task_kind::backward, 3) == 13);
  CHECK(bytes(0, task_kind::backward_weight, 4) == 4);
  options.jitter.spread = simulate::link_spread::stalls;
  options.jitter.stall_probability = 0.25;
  options.jitter.stall_unit_ms = options.jitter.stall_factor = 10;
  options.jitter.stall_alpha = 1e6;
  std::array<int, 3> stalls{};
  for (std::uint32_t mb = 0; mb < shape.microbatches; ++mb)
    ++stalls.at(static_cast<std::size_t>(link_ms(2, task_kind::forward, mb) / 100));
  CHECK(stalls[0] == Approx(562).margin(50));
  CHECK(stalls[1] == Approx(375).margin(50));
  CHECK(stalls[2] == Approx(63).margin(25));
}

}  // namespace rrfp::simulate

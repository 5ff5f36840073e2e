/// The paper's example of two stages, and the bounds of its theory (arXiv 2605.18750, figure 3,
/// theorem 6.1 and corollary C.2), with the real policies on the simulator.
#include <algorithm>

#include <rrfp/policies/registry.hpp>
#include <rrfp/weather/keyed_random.hpp>

#include "support.hpp"

namespace rrfp::simulate {

using namespace testing;

namespace {

plan plan_of(std::string_view name, dispatch_mode mode, const pipeline_shape& shape) {
  const auto set = policies::registry().make(name, shape);
  REQUIRE(set.ok());
  plan p;
  p.shape = shape;
  p.strategies = {{[set = *set](stage_id s) { return set->make(s); }, mode}};
  return p;
}

/// Durations of F and of the fused backward by stage and microbatch; messages take no time.
struct durations {
  std::vector<std::vector<nanoseconds>> forward;
  std::vector<std::vector<nanoseconds>> backward;

  std::uint32_t stages() const { return static_cast<std::uint32_t>(forward.size()); }
  std::uint32_t microbatches() const { return static_cast<std::uint32_t>(forward[0].size()); }
  pipeline_shape shape() const { return linear(stages(), microbatches()); }
};

function_costs costs_of(const durations& d) {
  function_costs costs;
  costs.task_time = [&d](stage_id s, const task& t) {
    return (t.kind == task_kind::forward ? d.forward : d.backward)[s.value()][t.mb.value()];
  };
  return costs;
}

nanoseconds makespan(std::string_view policy, dispatch_mode mode, const durations& d) {
  return run_well(plan_of(policy, mode, d.shape()), costs_of(d)).makespan;
}

/// The makespan of one direction alone, all of its microbatches available at its first stage.
nanoseconds one_way(const std::vector<std::vector<nanoseconds>>& by_stage, bool from_last) {
  std::vector<nanoseconds> end(by_stage.front().size(), 0);
  for (std::size_t i = 0; i < by_stage.size(); ++i) {
    const auto& stage = by_stage[from_last ? by_stage.size() - 1 - i : i];
    nanoseconds free_at = 0;
    for (std::size_t j = 0; j < stage.size(); ++j)
      end[j] = free_at = std::max(free_at, end[j]) + stage[j];
  }
  return end.back();
}

/// Theorem 6.1.
nanoseconds bound_of(const durations& d) {
  const auto slowest_over_last = [&](const auto& by_stage, std::uint32_t j) {
    nanoseconds slowest = 0;
    for (const auto& stage : by_stage) slowest = std::max(slowest, stage[j]);
    return slowest - by_stage.back()[j];
  };
  auto bound = one_way(d.forward, false) + one_way(d.backward, true);
  for (std::uint32_t j = 0; j < d.microbatches(); ++j) {
    if (j > 0) bound += slowest_over_last(d.forward, j);
    if (j + 1 < d.microbatches()) bound += slowest_over_last(d.backward, j);
  }
  return bound;
}

durations figure_3(nanoseconds first_backward) {
  const std::vector<nanoseconds> forward{7, 8, 8};
  return {{forward, forward}, {{first_backward, 10, 8}, {first_backward, 10, 8}}};
}

durations random_durations(std::uint64_t seed) {
  weather::keyed_random random{seed};
  const auto up_to = [&](std::uint64_t most) { return 1 + random.bits() % most; };
  const auto stages = up_to(9);
  const auto microbatches = up_to(24);
  // From nearly equal durations to very different ones.
  const auto most = up_to(100);
  durations d;
  for (auto* direction : {&d.forward, &d.backward})
    for (std::uint64_t s = 0; s < stages; ++s) {
      auto& stage = direction->emplace_back();
      for (std::uint64_t mb = 0; mb < microbatches; ++mb)
        stage.push_back(static_cast<nanoseconds>(20 + up_to(most)));
    }
  return d;
}

/// The largest entries of the paper's buffers: forwards executed less backwards executed, and
/// forward inputs that wait for the end of their backward.
class buffer_watch final : public observer {
 public:
  explicit buffer_watch(std::uint32_t stages) : executed_(stages), held_(stages) {}

  std::int64_t executed_peak = 0;
  std::int64_t held_peak = 0;

  void on_event(stage_id s, nanoseconds, const event& e) override {
    if (const auto* const arrived = std::get_if<input_arrived>(&e);
        arrived && arrived->kind == task_kind::forward && s.value() > 0)
      held_peak = std::max(held_peak, ++held_[s.value()]);
  }
  void on_task(const task_span& ran) override {
    const auto s = ran.stage.value();
    const auto kind = ran.what.what.kind;
    if (kind == task_kind::forward) executed_peak = std::max(executed_peak, ++executed_[s]);
    if (is_backward(kind)) {
      --executed_[s];
      if (s > 0) --held_[s];
    }
  }

 private:
  std::vector<std::int64_t> executed_;
  std::vector<std::int64_t> held_;
};

}  // namespace

TEST_CASE("the paper's two stages take 65, and with a late B 86 in order and 76 by readiness") {
  const auto expected = figure_3(9);
  const auto late = figure_3(20);
  CHECK(makespan("one_f_one_b", dispatch_mode::in_order, expected) == 65);
  CHECK(makespan("one_f_one_b", dispatch_mode::in_order, late) == 86);
  for (const auto* policy : {"bf", "fb", "b_priority"}) {
    INFO(policy);
    CHECK(makespan(policy, dispatch_mode::ready, expected) == 65);
    CHECK(makespan(policy, dispatch_mode::ready, late) == 76);
  }
  CHECK(makespan("f_priority", dispatch_mode::ready, expected) == 67);
  CHECK(makespan("f_priority", dispatch_mode::ready, late) == 78);
  CHECK(bound_of(expected) == 68);
  CHECK(bound_of(late) == 89);
}

TEST_CASE("BF never takes longer than the bound of theorem 6.1, nor less than the last stage") {
  int close = 0;
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    const auto d = random_durations(seed);
    INFO("seed " << seed << ", " << d.stages() << " stages, " << d.microbatches()
                 << " microbatches");
    const auto took = makespan("bf", dispatch_mode::ready, d);
    CHECK(took <= bound_of(d));
    nanoseconds least = 0;
    for (std::uint32_t j = 0; j < d.microbatches(); ++j)
      least += d.forward.back()[j] + d.backward.back()[j];
    CHECK(took >= least);
    close += 10 * took > 9 * bound_of(d);
  }
  CHECK(close > 20);
}

TEST_CASE("no buffer exceeds the limit of corollary C.2, for any ready policy") {
  int reached = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const auto shape = linear(2 + static_cast<std::uint32_t>(seed % 7), 24);
    const auto limit = static_cast<std::uint32_t>(1 + seed % 9);
    const auto costs = jittered_costs(shape, seed, 1.5);
    for (const auto* policy : {"bf", "fb", "b_priority", "f_priority", "bfw"}) {
      INFO("seed " << seed << ", " << policy << ", limit " << limit);
      auto p = plan_of(policy, dispatch_mode::ready, shape);
      p.limit.run_ahead = limit;
      buffer_watch watch{shape.stages};
      run_well(p, costs, &watch);
      CHECK(watch.executed_peak <= limit);
      CHECK(watch.held_peak <= limit);
      reached += watch.executed_peak == limit;
    }
  }
  CHECK(reached > 100);
}

}  // namespace rrfp::simulate

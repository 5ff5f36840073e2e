/// The paper's agreement of the tensor-parallel ranks of a stage, in the simulator.
#include <catch2/catch.hpp>

#include <cstdlib>
#include <functional>

#include <rrfp/policies/registry.hpp>
#include <rrfp/simulate/stage_costs.hpp>

#include "candidates.hpp"

namespace rrfp::experiment {

using simulate::nanoseconds;

namespace {

/// Tasks of 2 ns and messages of 1 ns, unless a test says otherwise.
class costs_of_ranks final : public simulate::cost_model {
 public:
  std::function<nanoseconds(virtual_stage_id, rank_id, const task&)> link_time =
      [](virtual_stage_id, rank_id, const task&) { return 1; };

  nanoseconds compute(step_id, stage_id, const task&) const override { return 2; }
  nanoseconds link(step_id, virtual_stage_id to, const task& t) const override {
    return link_time(to, rank_id{0}, t);
  }
  nanoseconds link_of_rank(step_id, virtual_stage_id to, rank_id r, const task& t) const override {
    return link_time(to, r, t);
  }
};

/// Log-normal tasks and exponential messages, by rank.
simulate::stage_costs ranks_apart(const pipeline_shape& shape, std::uint32_t ranks,
                                  std::uint64_t seed) {
  simulate::stage_costs_options options;
  options.ranks = ranks;
  options.jitter.seed = seed;
  options.jitter.compute = simulate::compute_jitter::lognormal;
  options.jitter.compute_sigma = 0.3;
  options.jitter.link = simulate::link_jitter::exponential;
  options.jitter.link_mean_ms = 1;
  options.jitter.ranks = simulate::rank_delays::apart;
  return simulate::stage_costs(shape, options);
}

simulate::plan plan_of(std::string_view name, const pipeline_shape& shape, std::uint32_t ranks) {
  const auto set = policies::registry().make(name, shape);
  REQUIRE(set.ok());
  simulate::plan p;
  p.shape = shape;
  p.rule = {[set = *set](const pipeline_shape&, stage_id s) { return set->make(s); },
            dispatch_mode::ready};
  p.ranks = ranks;
  return p;
}

struct outcome_by_candidates {
  simulate::report report;
  std::vector<agreement_cost> costs;
};

outcome_by_candidates run_by_candidates(simulate::plan p, nanoseconds gather_cost,
                                        const simulate::cost_model& costs) {
  candidates agreeing{p, gather_cost};
  const auto ran = simulate::run(p, costs);
  REQUIRE((ran ? "" : ran.message()) == "");
  outcome_by_candidates made{*ran, {}};
  for (std::uint32_t s = 0; s < p.shape.stages; ++s)
    made.costs.push_back(agreeing.cost_of(stage_id{s}));
  return made;
}

nanoseconds for_ranks(const simulate::stage_report& s) {
  return s.idle_by_cause[static_cast<std::size_t>(wait_cause::ranks)];
}

std::string text_of(const sequence& tasks) {
  std::string text;
  for (const auto& t : tasks) text += (text.empty() ? "" : " ") + to_string(t);
  return text;
}

}  // namespace

TEST_CASE("a gathering of picks costs its time before every task") {
  const auto p = plan_of("bf", {.stages = 2, .microbatches = 3}, 2);
  costs_of_ranks costs;
  costs.link_time = [](virtual_stage_id, rank_id, const task&) { return 0; };
  const auto free = run_by_candidates(p, 0, costs);
  const auto ran = run_by_candidates(p, 3, costs);
  for (std::uint32_t s = 0; s < 2; ++s) {
    CHECK(ran.costs[s].counts == agreement_counts{6, 0});
    CHECK(ran.costs[s].gathering == 6 * 3);
    CHECK(ran.costs[s].deferred == 0);
    CHECK(for_ranks(ran.report.stages[s]) == 6 * 3);
    CHECK(free.costs[s].gathering == 0);
  }
  CHECK(free.report.makespan == 16);
  CHECK(ran.report.makespan == 16 / 2 * 5);
}

TEST_CASE("picks that differ defer the stage, although a task is ready on every rank") {
  // F1 reaches rank 0 of stage 1 late: rank 1 picks F1 after B0, rank 0 has nothing; F2 is on both.
  const auto p = plan_of("bf", {.stages = 2, .microbatches = 3}, 2);
  costs_of_ranks costs;
  costs.link_time = [](virtual_stage_id, rank_id r, const task& t) {
    return t.kind == task_kind::forward && t.mb.value() == 1 && r == rank_id{0} ? 20 : 1;
  };
  const auto deferred = run_by_candidates(p, 0, costs);
  const auto ours = simulate::run(p, costs);
  REQUIRE(ours.ok());
  CHECK(deferred.costs[1].counts.deferrals > 0);
  CHECK(deferred.costs[1].deferred > 0);
  CHECK(deferred.costs[1].deferred <= for_ranks(deferred.report.stages[1]));
  CHECK(deferred.report.makespan > ours->makespan);
  CHECK(text_of(ours->stages[1].order) == "F0 BW0 F2 BW2 F1 BW1");
  CHECK(text_of(deferred.report.stages[1].order) == "F0 BW0 F1 BW1 F2 BW2");
}

TEST_CASE("one rank agrees with itself") {
  const pipeline_shape shape{.stages = 4, .microbatches = 8};
  const auto p = plan_of("bfw", shape, 1);
  const auto costs = ranks_apart(shape, 1, 1);
  const auto alone = run_by_candidates(p, 1000, costs);
  CHECK(alone.report.makespan == simulate::run(p, costs)->makespan);
  CHECK(alone.costs[0].counts == agreement_counts{});
}

TEST_CASE("every run by candidates ends, runs each task once, and every nanosecond has its cause") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const pipeline_shape shape{.stages = 1 + static_cast<std::uint32_t>(seed % 5),
                               .microbatches = 2 + static_cast<std::uint32_t>(seed % 9)};
    const auto ranks = 2 + static_cast<std::uint32_t>(seed % 3);
    auto p = plan_of(seed % 2 == 0 ? "bfw" : "bfw_plus", shape, ranks);
    p.steps = 2;
    if (seed % 3 == 1) p.limit.slots = 1 + static_cast<std::uint32_t>(seed % 4);
    if (seed % 3 == 2) p.limit.run_ahead = 1 + static_cast<std::uint32_t>(seed % 4);
    INFO("seed " << seed);
    const auto made = run_by_candidates(p, 50'000, ranks_apart(shape, ranks, seed));
    for (std::uint32_t s = 0; s < shape.stages; ++s) {
      const auto& stage = made.report.stages[s];
      const auto& cost = made.costs[s];
      CHECK(stage.order.size() == std::size_t{3} * shape.microbatches);
      CHECK(std::abs(stage.busy + stage.behind + stage.idle + stage.head + stage.tail -
                     made.report.makespan) <= 8);
      CHECK(cost.gathering == static_cast<nanoseconds>(cost.counts.gathers) * 50'000);
      CHECK(cost.gathering + cost.deferred <= for_ranks(stage));
    }
  }
}

}  // namespace rrfp::experiment

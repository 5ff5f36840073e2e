/// Stages of several tensor-parallel ranks: tasks and messages that take each rank its own time.
#include <rrfp/policies/registry.hpp>

#include "replay.hpp"
#include "support.hpp"

namespace rrfp::simulate {

using namespace testing;

namespace {

/// Durations from functions of the rank, too.
class costs_of_ranks final : public cost_model {
 public:
  std::function<nanoseconds(stage_id, rank_id, const task&)> task_time =
      [](stage_id, rank_id, const task&) { return 2; };
  std::function<nanoseconds(virtual_stage_id, rank_id, const task&)> link_time =
      [](virtual_stage_id, rank_id, const task&) { return 1; };

  nanoseconds compute(step_id, stage_id stage, const task& t) const override {
    return task_time(stage, rank_id{0}, t);
  }
  nanoseconds link(step_id, virtual_stage_id to, const task& t) const override {
    return link_time(to, rank_id{0}, t);
  }
  nanoseconds compute_of_rank(step_id, stage_id stage, rank_id r, const task& t) const override {
    return task_time(stage, r, t);
  }
  nanoseconds link_of_rank(step_id, virtual_stage_id to, rank_id r, const task& t) const override {
    return link_time(to, r, t);
  }
};

plan plan_of_ranks(std::string_view name, const pipeline_shape& shape, std::uint32_t ranks) {
  const auto set = policies::registry().make(name, shape);
  REQUIRE(set.ok());
  plan p;
  p.shape = shape;
  const bool fixed = (*set)->sequences() != nullptr;
  p.rule = {[set = *set](const pipeline_shape&, stage_id s) { return set->make(s); },
            fixed ? dispatch_mode::in_order : dispatch_mode::ready};
  p.ranks = ranks;
  return p;
}

nanoseconds idle_for(const stage_report& s, wait_cause c) {
  return s.idle_by_cause[static_cast<std::size_t>(c)];
}

/// Log-normal tasks and exponential messages, by rank.
stage_costs ranks_apart(const pipeline_shape& shape, std::uint32_t ranks, std::uint64_t seed) {
  stage_costs_options options;
  options.ranks = ranks;
  options.jitter.seed = seed;
  options.jitter.compute = simulate::compute_jitter::lognormal;
  options.jitter.compute_sigma = 0.3;
  options.jitter.link = simulate::link_jitter::exponential;
  options.jitter.link_mean_ms = 1;
  options.jitter.ranks = simulate::rank_delays::apart;
  return stage_costs(shape, options);
}

}  // namespace

TEST_CASE("a stage waits for the slowest rank of its task and for the last of its inputs") {
  costs_of_ranks costs;
  costs.task_time = [](stage_id, rank_id r, const task&) { return r == rank_id{0} ? 2 : 5; };
  costs.link_time = [](virtual_stage_id, rank_id r, const task&) {
    return r == rank_id{0} ? 4 : 3;
  };
  const auto ran = run_well(plan_of_ranks("bf", linear(2, 1), 2), costs);
  // F on stage 0 ends at 2 and 5; its output arrives at 6 and 8, so F on stage 1 begins at 8.
  CHECK(ran.makespan == 5 + 3 + 5 + 5 + 3 + 5);
  CHECK(ran.stages[0].busy == 7);
  CHECK(ran.stages[0].behind == 3);
  CHECK(idle_for(ran.stages[0], wait_cause::ranks) == 2);
  CHECK(idle_for(ran.stages[1], wait_cause::ranks) == 2);
  CHECK(ran.stages[1].head == 6);
  for (const auto& s : ran.stages)
    CHECK(s.busy + s.behind + s.idle + s.head + s.tail == ran.makespan);
}

TEST_CASE("ranks with equal times run like a stage of one device, in every mode") {
  for (const auto* policy : {"bf", "bfw", "bfw_plus", "one_f_one_b", "zb_h1"})
    for (const auto messages : {transport::asynchronous, transport::blocking}) {
      const auto shape = linear(4, 8);
      auto one = plan_of_ranks(policy, shape, 1);
      if (messages == transport::blocking && one.rule.mode == dispatch_mode::ready) continue;
      one.messages = messages;
      auto four = one;
      four.ranks = 4;
      const auto costs = jittered_costs(shape, 3);
      transcript_recorder of_one{4}, of_four{4};
      const auto a = run_well(one, costs, &of_one);
      const auto b = run_well(four, costs, &of_four);
      INFO(policy);
      CHECK(a.makespan == b.makespan);
      CHECK(a.lower_bound == b.lower_bound);
      CHECK(a.bubble_fraction == Approx(b.bubble_fraction));
      for (std::uint32_t s = 0; s < 4; ++s) {
        CHECK(a.stages[s].order == b.stages[s].order);
        CHECK(a.stages[s].busy == b.stages[s].busy);
        CHECK(a.stages[s].blocked == b.stages[s].blocked);
        CHECK(b.stages[s].behind == 0);
        CHECK(idle_for(b.stages[s], wait_cause::ranks) == 0);
      }
    }
}

TEST_CASE("ranks apart take longer than together, and every nanosecond has its cause") {
  const auto shape = linear(4, 16);
  auto p = plan_of_ranks("bfw", shape, 4);
  p.steps = 3;
  const auto apart = run_well(p, ranks_apart(shape, 4, 1));
  auto one = p;
  one.ranks = 1;
  CHECK(apart.makespan > run_well(one, ranks_apart(shape, 1, 1)).makespan);
  for (const auto& s : apart.stages) {
    CHECK(s.behind > 0);
    CHECK(std::abs(s.busy + s.behind + s.idle + s.head + s.tail - apart.makespan) <= 8);
  }
}

}  // namespace rrfp::simulate

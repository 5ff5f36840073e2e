/// Bad hints rank the same tasks, are reproducible, and slow a run down but never block it.
#include <catch2/catch.hpp>

#include <set>

#include <rrfp/core/sequence.hpp>
#include <rrfp/policies/registry.hpp>
#include <rrfp/simulate/simulator.hpp>
#include <rrfp/simulate/stage_costs.hpp>

#include "hints.hpp"

namespace rrfp::experiment {

namespace {

const pipeline_shape shape{4, 1, 12, placement::linear};

std::shared_ptr<const policy_set> policies_of(std::string_view name, const pipeline_shape& of) {
  const auto made = policies::registry().make(name, of);
  REQUIRE(made.ok());
  return *made;
}

simulate::nanoseconds makespan(const std::shared_ptr<const policy_set>& set) {
  simulate::plan p;
  p.shape = shape;
  p.rule = {[set](const pipeline_shape&, stage_id s) { return set->make(s); }};
  p.limit.slots = 8;
  const simulate::stage_costs costs{shape, {}};
  const auto ran = simulate::run(p, costs);
  INFO((ran ? "" : ran.message()));
  REQUIRE(ran.ok());
  return ran->makespan;
}

}  // namespace

TEST_CASE("a reversed schedule runs its tasks from last to first") {
  const auto base = policies_of("zb_h1", shape);
  const auto reversed = make_reversed(base);
  CHECK(reversed->name() == "reversed zb_h1");
  CHECK(reversed->sequences() == nullptr);
  for (std::uint32_t s = 0; s < shape.stages; ++s) {
    auto order = (*base->sequences())[s];
    std::reverse(order.begin(), order.end());
    CHECK(obeyed_order(*reversed->make(stage_id{s}), shape) == order);
  }
}

TEST_CASE("rounds are reversed lane by lane, and W stays split off") {
  const auto reversed = make_reversed(policies_of("bfw", shape));
  const auto order = obeyed_order(*reversed->make(stage_id{1}), shape);
  REQUIRE(order.size() == std::size_t{3} * shape.microbatches);
  CHECK(order.front().mb == microbatch_id{shape.microbatches - 1});
  CHECK(order.back().mb == microbatch_id{0});
}

TEST_CASE("a shuffled hint depends on the seed and the stage alone") {
  const auto base = policies_of("bfw", shape);
  const auto order = [&](std::uint64_t seed, std::uint32_t stage) {
    return obeyed_order(*make_shuffled(base, seed)->make(stage_id{stage}), shape);
  };
  CHECK(order(1, 0) == order(1, 0));
  CHECK(order(1, 0) != order(2, 0));
  CHECK(order(1, 0) != order(1, 1));
  std::set<std::uint64_t> ranks;
  const auto hint = make_shuffled(base, 1)->make(stage_id{0});
  for (const auto& t : order(1, 0)) ranks.insert(hint->rank(t));
  CHECK(ranks.size() == std::size_t{3} * shape.microbatches);
}

TEST_CASE("a run ends with any hint, with bad ones later") {
  for (const auto* name : {"bfw", "one_f_one_b", "zb_h1"}) {
    INFO(name);
    const auto base = policies_of(name, shape);
    const auto good = makespan(base);
    CHECK(makespan(make_reversed(base)) > good);
    CHECK(makespan(make_shuffled(base, 3)) > good);
  }
}

}  // namespace rrfp::experiment

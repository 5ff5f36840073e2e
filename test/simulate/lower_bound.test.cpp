#include "support.hpp"

namespace rrfp::simulate {

using namespace testing;
using rrfp::testing::bf_hint;
using rrfp::testing::kind_first_hint;
using rrfp::testing::random_hint;
using rrfp::testing::random_source;
using rrfp::testing::reversed_hint;

TEST_CASE("1F1B with equal tasks reaches the bound") {
  for (std::uint32_t p = 1; p <= 6; ++p)
    for (std::uint32_t m = 1; m <= 9; ++m) {
      const auto ran = run_well(one_f_one_b_plan(linear(p, m)), function_costs{});
      CHECK(ran.makespan == 3 * (m + p - 1));
      CHECK(ran.lower_bound == ran.makespan);
    }
}

TEST_CASE("the bound is the busiest stage with its shortest head and tail") {
  function_costs costs;
  costs.task_time = [](stage_id s, const task& t) -> nanoseconds {
    if (s.value() == 1) return 100;
    return t.mb.value() == 1 ? 3 : 5;  // microbatch 1 is the fastest to stage 1 and back
  };
  costs.link_time = [](virtual_stage_id, const task&) { return 2; };
  const auto ran = run_well(one_f_one_b_plan(linear(3, 4)), costs);
  CHECK(ran.lower_bound == (3 + 2) + 4 * 200 + (2 + 3));
}

TEST_CASE("only the longer of pending W and the tail counts") {
  const auto bound = [](nanoseconds weight, nanoseconds link) {
    function_costs costs;
    costs.task_time = [=](stage_id s, const task& t) -> nanoseconds {
      if (t.kind == task_kind::weight) return s.value() == 1 ? weight : 0;
      return s.value() == 1 ? 10 : 1;
    };
    costs.link_time = [=](virtual_stage_id, const task& t) -> nanoseconds {
      return t.kind == task_kind::backward ? link : 0;
    };
    const auto ran = run_well(ready_plan(bf_hint(linear(2, 3), false)), costs);
    CHECK(ran.lower_bound <= ran.makespan);
    return ran.lower_bound;
  };
  CHECK(bound(10, 2) == 1 + 60 + 30);
  CHECK(bound(10, 100) == 1 + 60 + (100 + 1));
}

TEST_CASE("no step is shorter than its slowest microbatch") {
  function_costs costs;
  costs.task_time = [](stage_id, const task& t) { return t.mb.value() == 2 ? 1000 : 1; };
  const auto ran = run_well(one_f_one_b_plan(linear(4, 3)), costs);
  CHECK(ran.lower_bound == 8000);
}

TEST_CASE("no run is shorter than the bound, and the bound does not depend on the policy") {
  random_source random{2024};
  for (int i = 0; i < 400; ++i) {
    pipeline_shape shape;
    shape.stages = random.between(1, 5);
    shape.microbatches = random.between(1, 8);
    shape.layout = static_cast<placement>(random.below(3));
    shape.chunks = shape.layout == placement::linear ? 1
                   : shape.layout == placement::v    ? 2
                                                     : random.between(1, 3);
    const auto seed = random.next();
    const auto costs = jittered_costs(shape, seed, 0.1 * random.below(20));
    INFO("case " << i << ": " << shape.stages << " stages, " << shape.chunks << " chunks, "
                 << shape.microbatches << " microbatches");
    const bool fused = random.one_in(2);
    nanoseconds same = -1;
    for (const auto& hint :
         {bf_hint(shape, fused), reversed_hint(shape, fused),
          kind_first_hint(shape, fused, task_kind::forward),
          kind_first_hint(shape, fused, task_kind::backward), random_hint(shape, random)}) {
      auto p = ready_plan(hint);
      p.limit.slots = random.below(4);
      p.lookahead = random.below(2);
      const auto ran = run_well(p, costs);
      REQUIRE(ran.lower_bound <= ran.makespan);
      nanoseconds busiest = 0;
      for (const auto& stage : ran.stages) busiest = std::max(busiest, stage.busy);
      REQUIRE(ran.lower_bound >= busiest);
      if (hint.fused != bf_hint(shape, fused).fused) continue;
      if (same < 0) same = ran.lower_bound;
      REQUIRE(ran.lower_bound == same);
    }
  }
}

}  // namespace rrfp::simulate

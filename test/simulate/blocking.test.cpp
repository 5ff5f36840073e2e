/// Paired send and receive: what a framework with a fixed schedule pays for its transport.
#include <rrfp/policies/registry.hpp>

#include "support.hpp"

namespace rrfp::simulate {

using namespace testing;

namespace {

function_costs with_links(nanoseconds each) {
  function_costs costs;
  costs.link_time = [each](virtual_stage_id, const task&) { return each; };
  return costs;
}

plan blocking(plan p) {
  p.messages = transport::blocking;
  return p;
}

plan scheduled(std::string_view policy, const pipeline_shape& shape) {
  const auto set = policies::registry().make(policy, shape);
  REQUIRE(set.ok());
  return in_order_plan(shape, *(*set)->sequences());
}

}  // namespace

TEST_CASE("blocking 1F1B on two stages and two microbatches, by hand") {
  const auto costs = with_links(1);
  const auto ran = run_well(blocking(one_f_one_b_plan(linear(2, 2))), costs);
  // stage 0: F0 0-1, sends until 2; F1 2-3, sends until 6: stage 1 receives only after BW0;
  //          BW0 6-8, waits for the gradient until 10, BW1 10-12
  // stage 1: F0 2-3, BW0 3-5, sends until 6 and receives F1 meanwhile; F1 6-7, BW1 7-9, sends
  //          until 10
  CHECK(ran.makespan == 12);
  CHECK(ran.stages[0].blocked == 1 + 3);
  CHECK(ran.stages[0].idle == 2);
  CHECK(ran.stages[0].idle_by_cause[static_cast<int>(wait_cause::input)] == 2);
  CHECK(ran.stages[1].blocked == 1 + 1);
  CHECK(ran.stages[1].idle == 0);
  CHECK(ran.stages[1].head == 2);
  CHECK(ran.stages[1].tail == 2);
  for (const auto& s : ran.stages)
    CHECK(s.busy + s.idle + s.head + s.tail + s.blocked == ran.makespan);
  // The asynchronous transport sends F1 at 2 and hides it behind BW0.
  CHECK(run_well(one_f_one_b_plan(linear(2, 2)), costs).makespan == 11);
}

TEST_CASE("with links without delay, 1F1B loses nothing to blocking if all tasks are equal") {
  const auto shape = linear(4, 8);
  CHECK(run_well(blocking(one_f_one_b_plan(shape)), function_costs{}).makespan ==
        run_well(one_f_one_b_plan(shape), function_costs{}).makespan);
}

TEST_CASE("the receive of the next F is posted before the W in between") {
  // Stage 1 posts the receive of F1 with the send of B0; F1 travels 6-9 while W0 runs 6-7.
  const auto p = in_order_plan(
      linear(2, 2), {sequence_of("F0 F1 B0 W0 B1 W1"), sequence_of("F0 B0 W0 F1 B1 W1")});
  function_costs costs;
  costs.link_time = [](virtual_stage_id, const task& t) {
    return t.kind == task_kind::forward ? 3 : 0;
  };
  const auto ran = run_well(blocking(p), costs);
  // stage 0: F0 0-1, sends until 4; F1 4-5, sends until 9 (posted 5, received from 6 on)
  // stage 1: F0 4-5, B0 5-6; its gradient is taken at once; W0 6-7, F1 9-10, B1 10-11, W1 11-12
  // stage 0: B0 9-10, W0 10-11, B1 11-12, W1 12-13
  CHECK(ran.makespan == 13);
  CHECK(ran.stages[0].blocked == 3 + 4);
  CHECK(ran.stages[1].blocked == 0);
  CHECK(ran.stages[1].idle == 2);
}

TEST_CASE(
    "blocking is never faster than the asynchronous transport, and every fixed schedule ends") {
  for (const auto* policy : {"one_f_one_b", "zb_h1", "gpipe", "zb_h2"})
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      INFO(policy << " " << seed);
      const auto p = scheduled(policy, linear(6, 16));
      const auto costs = jittered_costs(p.shape, seed);
      const auto ran = run_well(blocking(p), costs);
      CHECK(ran.makespan >= run_well(p, costs).makespan);
      for (const auto& s : ran.stages)
        CHECK(s.busy + s.idle + s.head + s.tail + s.blocked == ran.makespan);
    }
}

TEST_CASE("steps begin with nothing posted") {
  auto p = blocking(one_f_one_b_plan(linear(3, 4)));
  const auto one = run_well(p, with_links(1)).makespan;
  p.steps = 3;
  CHECK(run_well(p, with_links(1)).makespan == 3 * one);
}

TEST_CASE("a sequence whose send is not received stalls, and the error says who waits") {
  const auto p =
      in_order_plan(linear(2, 2), {sequence_of("F0 F1 BW0 BW1"), sequence_of("F1 BW1 F0 BW0")});
  CHECK(run(p, function_costs{}).ok());
  const auto ran = run(blocking(p), function_costs{});
  REQUIRE_FALSE(ran.ok());
  CHECK(ran.message() ==
        "step 1 stalled after 1 ns with tasks left: stage 0 waits for the receiver of F0; "
        "stage 1 waits with F1 for F1 of stage 0 (input)");
}

TEST_CASE("only in-order mode can use the blocking transport") {
  auto p = blocking(ready_plan(rrfp::testing::bf_hint(linear(2, 2), true)));
  CHECK(run(p, function_costs{}).message() ==
        "blocking transport: expected mode in-order without lookahead, got ready with lookahead "
        "0");
  p = blocking(one_f_one_b_plan(linear(2, 2)));
  p.lookahead = 1;
  CHECK_FALSE(run(p, function_costs{}).ok());
}

}  // namespace rrfp::simulate

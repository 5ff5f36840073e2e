#include <map>

#include "replay.hpp"
#include "support.hpp"

namespace rrfp::simulate {

using namespace testing;
using rrfp::testing::bf_hint;
using rrfp::testing::kind_first_hint;

TEST_CASE("1F1B on two stages and two microbatches, by hand") {
  const auto ran = run_well(one_f_one_b_plan(linear(2, 2)), function_costs{});
  // stage 0: F0 0-1, F1 1-2, BW0 4-6, BW1 7-9; stage 1: F0 1-2, BW0 2-4, F1 4-5, BW1 5-7
  CHECK(ran.makespan == 9);
  REQUIRE(ran.stages.size() == 2);
  const auto& first = ran.stages[0];
  CHECK(text_of(first.order) == "F0 F1 BW0 BW1");
  CHECK(first.busy == 6);
  CHECK(first.idle == 3);
  CHECK(first.idle_by_cause[static_cast<int>(wait_cause::input)] == 3);
  CHECK(first.head == 0);
  CHECK(first.tail == 0);
  CHECK(first.memory.slots_peak == 2);
  const auto& last = ran.stages[1];
  CHECK(text_of(last.order) == "F0 BW0 F1 BW1");
  CHECK(last.busy == 6);
  CHECK(last.idle == 0);
  CHECK(last.head == 1);
  CHECK(last.tail == 2);
  CHECK(last.memory.slots_peak == 1);
  CHECK(ran.bubble_fraction == Approx(1 - 12.0 / 18));
  // 2 steps begun, 2 data, 4 messages, 8 finishes, and a decide at each instant of a stage: stage 0
  // at 0, 1, 2, 4, 6, 7, 9, stage 1 at 0, 1, 2, 4, 5, 7
  CHECK(ran.events == 2 + 2 + 4 + 8 + 7 + 6);
}

TEST_CASE("steps may differ in their number of microbatches") {
  const std::vector<std::uint32_t> counts{3, 8, 1, 1, 5};
  const bool in_order = GENERATE(false, true);
  const auto plan_of = [&](std::uint32_t microbatches) {
    const auto shape = linear(3, microbatches);
    return in_order ? one_f_one_b_plan(shape) : ready_plan(bf_hint(shape, false));
  };
  auto plan = plan_of(4);
  plan.steps = counts.size();
  plan.microbatches = [&](step_id step) { return counts[step.value()]; };
  plan.rule.make_policy = [&](const pipeline_shape& shape, stage_id stage) {
    return plan_of(shape.microbatches).rule.make_policy(shape, stage);
  };
  plan.slot_bytes = [&](step_id step, stage_id, microbatch_id mb) {
    CHECK(mb.value() < counts[step.value()]);
    return std::uint64_t{1};
  };
  const auto ran = run_well(plan, function_costs{});
  REQUIRE(ran.steps.size() == counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto alone = run_well(plan_of(counts[i]), function_costs{});
    CHECK(ran.steps[i].makespan == alone.makespan);
    CHECK(ran.steps[i].lower_bound == alone.lower_bound);
  }
  transcript_recorder lines{3};
  run_well(plan, function_costs{}, &lines);
  const stage_config config{
      .shape = plan.shape, .stage = stage_id{1}, .mode = plan.rule.mode, .limit = plan.limit};
  const auto again = replay(config, plan.rule.make_policy, lines.lines(stage_id{1}));
  INFO((again ? "" : again.message()));
  CHECK(again.ok());
}

TEST_CASE("links add their time in both directions") {
  function_costs costs;
  costs.task_time = [](stage_id, const task& t) { return is_backward(t.kind) ? 200 : 100; };
  costs.link_time = [](virtual_stage_id to, const task& t) {
    CHECK(to.value() == (t.kind == task_kind::forward ? 1 : 0));
    return t.kind == task_kind::forward ? 50 : 25;
  };
  const auto ran = run_well(one_f_one_b_plan(linear(2, 2)), costs);
  CHECK(ran.makespan == 975);
  CHECK(ran.lower_bound == 975);
  CHECK(ran.stages[1].head == 150);
  CHECK(ran.stages[1].tail == 225);
}

TEST_CASE("a later message may overtake: ready mode uses it, in-order mode waits") {
  function_costs costs;
  costs.link_time = [](virtual_stage_id, const task& t) {
    return t.kind == task_kind::forward && t.mb.value() == 0 ? 10 : 0;
  };
  const auto shape = linear(2, 2);
  const auto ready = run_well(ready_plan(bf_hint(shape, true)), costs);
  CHECK(text_of(ready.stages[1].order) == "F1 BW1 F0 BW0");
  CHECK(ready.makespan == 16);  // F0 at stage 1 11-12, BW0 12-14, at stage 0 14-16
  const auto obeyed = run_well(one_f_one_b_plan(shape), costs);
  CHECK(text_of(obeyed.stages[1].order) == "F0 BW0 F1 BW1");
  CHECK(obeyed.makespan == 19);
}

TEST_CASE("all events of one instant are delivered before any stage decides") {
  // At 5, BW0 of stage 2 ends and its gradient reaches stage 1 at once; F1 also arrives there then.
  function_costs costs;
  costs.link_time = [](virtual_stage_id to, const task& t) {
    return t.kind == task_kind::forward && t.mb.value() == 1 && to.value() == 1 ? 3 : 0;
  };
  const auto order_of = [&](task_kind first) {
    const auto hint = kind_first_hint(linear(3, 2), true, first);
    return text_of(run_well(ready_plan(hint), costs).stages[1].order);
  };
  CHECK(order_of(task_kind::backward) == "F0 BW0 F1 BW1");
  CHECK(order_of(task_kind::forward) == "F0 F1 BW0 BW1");
}

TEST_CASE("a task without duration ends at once and does not advance the clock") {
  function_costs costs;
  costs.task_time = [](stage_id, const task&) { return 0; };
  const auto ran = run_well(one_f_one_b_plan(linear(3, 4)), costs);
  CHECK(ran.makespan == 0);
  CHECK(ran.lower_bound == 0);
  CHECK(ran.bubble_fraction == 0);
  CHECK(text_of(ran.stages[2].order) == "F0 BW0 F1 BW1 F2 BW2 F3 BW3");
}

TEST_CASE("a memory limit holds, and its idle time is attributed to memory") {
  auto p = ready_plan(bf_hint(linear(2, 2), true));
  p.limit.slots = 1;
  const auto ran = run_well(p, function_costs{});
  CHECK(ran.makespan == 12);  // one microbatch after the other
  CHECK(ran.stages[0].memory.slots_peak == 1);
  // From 1 to 4, F1 waits for a slot; then BW0 runs 4-6, F1 6-7, and BW1 is ready only at 10.
  CHECK(ran.stages[0].idle_by_cause[static_cast<int>(wait_cause::memory)] == 3);
  CHECK(ran.stages[0].idle_by_cause[static_cast<int>(wait_cause::input)] == 3);

  p.limit.slots = 0;
  p.limits = {{.slots = 2}, {.slots = 1}};
  CHECK(run_well(p, function_costs{}).stages[0].memory.slots_peak == 2);
}

TEST_CASE("bytes are counted by microbatch and stage") {
  auto p = ready_plan(bf_hint(linear(2, 4), true));
  p.slot_bytes = [](step_id, stage_id s, microbatch_id mb) -> std::uint64_t {
    return (s.value() + 1) * 100 + mb.value();
  };
  const auto unlimited = run_well(p, function_costs{});
  CHECK(unlimited.stages[0].memory.bytes_peak > 350);
  p.limit.bytes = 350;
  const auto limited = run_well(p, function_costs{});
  CHECK(limited.stages[0].memory.bytes_peak <= 350);
  CHECK(limited.stages[0].memory.slots_peak == 3);
  CHECK(limited.stages[1].memory.slots_peak == 1);
}

TEST_CASE("the cause of idle time is updated when inputs arrive") {
  // Stage 1 executes F0 F1 BW0 BW1. F1 arrives only at 12; at 5, BW0's gradient arrives, out of
  // turn.
  function_costs costs;
  costs.link_time = [](virtual_stage_id to, const task& t) {
    return t.kind == task_kind::forward && t.mb.value() == 1 && to.value() == 1 ? 10 : 0;
  };
  struct gaps : observer {
    void on_idle(const idle_span& span) override {
      if (span.stage != stage_id{1}) return;
      CHECK(span.step == step_id{0});
      text += std::string(name(span.why.why)) + " ";
      if (span.why.why != wait_cause::complete) text += to_string(span.why.head) + " ";
      text += std::to_string(span.begin) + "-" + std::to_string(span.end) + "; ";
    }
    std::string text;
  } seen;
  const auto p = in_order_plan(
      linear(3, 2),
      {sequence_of("F0 F1 BW0 BW1"), sequence_of("F0 F1 BW0 BW1"), sequence_of("F0 BW0 F1 BW1")});
  const auto ran = run_well(p, costs, &seen);
  // F1 12-13, BW0 13-15; stage 2: F1 13-14, BW1 14-16; BW1 16-18; stage 0 ends at 20
  CHECK(seen.text ==
        "input F0 0-1; input F1 2-5; in_order F1 5-12; input BW1 15-16; complete 18-20; ");
  const auto& stage = ran.stages[1];
  CHECK(stage.head == 1);
  CHECK(stage.tail == 2);
  CHECK(stage.idle == 11);
  CHECK(stage.idle_by_cause[static_cast<int>(wait_cause::input)] == 4);
  CHECK(stage.idle_by_cause[static_cast<int>(wait_cause::in_order)] == 7);
}

TEST_CASE("a stage's transfer to itself uses no link") {
  function_costs costs;
  costs.link_time = [](virtual_stage_id to, const task& t) {
    CHECK(to.value() != (t.kind == task_kind::forward ? 2 : 1));  // both are on stage 1
    return 10;
  };
  const pipeline_shape shape{2, 2, 1, placement::v};
  const auto ran = run_well(ready_plan(bf_hint(shape, true)), costs);
  CHECK(ran.makespan == 4 * 1 + 4 * 2 + 4 * 10);
  CHECK(ran.lower_bound == ran.makespan);
}

TEST_CASE("queued launches run back to back, in the order of their numbers") {
  for (std::uint32_t lookahead = 0; lookahead < 4; ++lookahead) {
    auto p = ready_plan(bf_hint(linear(1, 6), false));
    p.lookahead = lookahead;
    struct spans : observer {
      void on_task(const task_span& span) override {
        CHECK(span.begin == end);
        CHECK(span.what.seq.value() == count++);
        end = span.end;
      }
      nanoseconds end = 0;
      std::uint64_t count = 0;
    } seen;
    CHECK(run_well(p, function_costs{}, &seen).makespan == 18);
    CHECK(seen.count == 18);
  }
}

TEST_CASE("a deeper queue decides earlier and may decide worse") {
  // On stage 1, F1 and F2 wait while F0 runs; BW0's gradient arrives at 5.
  auto p = ready_plan(kind_first_hint(linear(3, 3), true, task_kind::backward));
  function_costs costs;
  costs.task_time = [](stage_id s, const task& t) -> nanoseconds {
    return s.value() == 1 && t.kind == task_kind::forward ? 10 : is_backward(t.kind) ? 2 : 1;
  };
  CHECK(text_of(run_well(p, costs).stages[1].order) == "F0 F1 BW0 F2 BW1 BW2");
  p.lookahead = 1;
  CHECK(text_of(run_well(p, costs).stages[1].order) == "F0 F1 F2 BW0 BW1 BW2");
}

TEST_CASE("steps follow one another with a barrier between") {
  auto p = one_f_one_b_plan(linear(2, 2));
  p.steps = 3;
  struct clock : observer {
    void on_task(const task_span& span) override {
      CHECK(span.begin >= 9 * static_cast<nanoseconds>(span.step.value()));
      CHECK(span.end <= 9 * static_cast<nanoseconds>(span.step.value() + 1));
      ++tasks;
    }
    int tasks = 0;
  } seen;
  const auto ran = run_well(p, function_costs{}, &seen);
  CHECK(seen.tasks == 24);
  REQUIRE(ran.steps.size() == 3);
  for (const auto& step : ran.steps) CHECK(step.makespan == 9);
  CHECK(ran.makespan == 27);
  CHECK(ran.lower_bound == 27);
  CHECK(ran.stages[1].head == 3);
  CHECK(ran.stages[1].tail == 6);
  CHECK(ran.stages[0].idle == 9);
  CHECK(text_of(ran.stages[0].order) == "F0 F1 BW0 BW1");
}

TEST_CASE(
    "the time of every stage splits into work, gaps, head and tail, and every gap has a cause") {
  struct totals : observer {
    void on_task(const task_span& span) override { busy[span.stage] += span.end - span.begin; }
    void on_idle(const idle_span& span) override {
      CHECK(span.begin < span.end);
      CHECK(span.begin >= ends[span.stage]);
      ends[span.stage] = span.end;
      still[span.stage] += span.end - span.begin;
    }
    std::map<stage_id, nanoseconds> busy, still, ends;
  };
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const pipeline_shape shape{4, 2, 9, placement::interleaved};
    auto p = ready_plan(bf_hint(shape, seed % 2 == 0));
    p.limit.slots = seed % 3 == 0 ? 0 : 3;
    p.steps = 2;
    totals seen;
    const auto ran = run_well(p, jittered_costs(shape, seed), &seen);
    for (std::uint32_t s = 0; s < shape.stages; ++s) {
      const auto& stage = ran.stages[s];
      CHECK(stage.busy + stage.idle + stage.head + stage.tail == ran.makespan);
      nanoseconds causes = 0;
      for (const auto part : stage.idle_by_cause) causes += part;
      CHECK(causes == stage.idle);
      CHECK(seen.busy[stage_id{s}] == stage.busy);
      CHECK(seen.still[stage_id{s}] == stage.idle + stage.head + stage.tail);
      CHECK(stage.memory.slots == 0);
      if (p.limit.slots != 0) CHECK(stage.memory.slots_peak <= 3);
    }
  }
}

TEST_CASE("the same plan and costs give the same run, event for event") {
  const auto shape = linear(4, 12);
  const auto lines = [&](std::uint64_t seed) {
    transcript_recorder recorder{shape.stages};
    run_well(ready_plan(bf_hint(shape, false)), jittered_costs(shape, seed), &recorder);
    std::vector<std::string> all;
    for (std::uint32_t s = 0; s < shape.stages; ++s) {
      const auto of_stage = recorder.lines(stage_id{s});
      all.insert(all.end(), of_stage.begin(), of_stage.end());
    }
    return all;
  };
  CHECK(lines(1) == lines(1));
  CHECK(lines(1) != lines(2));
}

TEST_CASE("an infeasible order is an error that says which stage waits for what") {
  const auto p =
      in_order_plan(linear(2, 2), {sequence_of("F0 BW0 F1 BW1"), sequence_of("F1 F0 BW0 BW1")});
  const auto ran = run(p, function_costs{});
  REQUIRE_FALSE(ran.ok());
  CHECK(ran.message() ==
        "step 1 stalled after 1 ns with tasks left: "
        "stage 0 waits with BW0 for BW0 of stage 1 (in_order); "
        "stage 1 waits with F1 for F1 of stage 0 (in_order)");
}

TEST_CASE("the error for an order that needs too much memory names the slot") {
  auto p = in_order_plan(linear(1, 2), {sequence_of("F0 F1 BW0 BW1")});
  p.limit.slots = 1;
  const auto ran = run(p, function_costs{});
  REQUIRE_FALSE(ran.ok());
  CHECK(ran.message() ==
        "step 1 stalled after 1 ns with tasks left: "
        "stage 0 waits with F1 for a memory slot (memory)");
}

TEST_CASE("invalid plans are refused") {
  auto rounds = ready_plan(bf_hint(linear(2, 2), true));
  rounds.rule.mode = dispatch_mode::in_order;
  const auto obeyed = run(rounds, function_costs{});
  REQUIRE_FALSE(obeyed.ok());
  CHECK(obeyed.message() ==
        "in-order mode: expected a policy with a fixed schedule, got 'table', which has "
        "none");
  rounds.shape.stages = 0;
  const auto empty = run(rounds, function_costs{});
  REQUIRE_FALSE(empty.ok());
  CHECK(empty.message() == "stages: expected at least 1, got 0");
}

TEST_CASE(
    "the nominal order of a policy that works in rounds, run in order, takes as long as the "
    "policy") {
  const auto shape = linear(4, 8);
  auto rounds = ready_plan(bf_hint(shape, false));
  rounds.limit.slots = 4;
  rounds.steps = 5;
  const auto costs = stage_costs(shape, {});
  const auto orders = nominal_sequences(rounds, costs);
  REQUIRE(orders.ok());
  CHECK(check_sequences(shape, *orders).ok());
  rounds.steps = 1;
  const auto ready = run_well(rounds, costs);
  auto obeyed_plan = in_order_plan(shape, *orders);
  obeyed_plan.limit.slots = 4;
  const auto obeyed = run_well(obeyed_plan, costs);
  CHECK(obeyed.makespan == ready.makespan);
  for (std::uint32_t s = 0; s < shape.stages; ++s)
    CHECK(obeyed.stages[s].order == ready.stages[s].order);
}

}  // namespace rrfp::simulate

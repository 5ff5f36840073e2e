// Profiles of recorded runs: replayed by the simulator, and read by a job.
#include <catch2/catch.hpp>

#include <rrfp/job/job.hpp>
#include <rrfp/policies/registry.hpp>
#include <rrfp/report/profile.hpp>
#include <rrfp/simulate/duration_table.hpp>

#include "hand_made.hpp"

namespace rrfp::report::testing {
namespace {

using Catch::Matchers::Contains;

profile all_of(const hand_made& t) {
  const auto file = t.read();
  auto p = profile_of(file.runs[0], step_id{0}, step_id{~std::uint64_t{0}});
  if (!p) FAIL(p.message());
  return std::move(*p);
}

std::string refusal(const hand_made& t, std::uint64_t first = 0, std::uint64_t last = ~0U) {
  const auto file = t.read();
  const auto p = profile_of(file.runs[0], step_id{first}, step_id{last});
  return p ? "accepted" : p.message();
}

/// A job with this [pipeline] and [cost].
job::job job_with(const std::string& cost, const std::string& pipeline) {
  const auto made = job::parse_job("[pipeline]\n" + pipeline + cost, "x.toml", policies::registry(),
                                   {}, job::job_use::simulate);
  if (!made) FAIL(made.message() << "\n" << cost);
  return *made;
}

nanoseconds replayed(const profile& p, const std::string& policy, std::uint64_t steps) {
  const auto table = simulate::duration_table::parse(durations_csv(p), "x.csv", p.shape);
  if (!table) FAIL(table.message());
  const auto policies = policies::registry().make(policy, p.shape);
  REQUIRE(policies.ok());
  simulate::plan plan;
  plan.shape = p.shape;
  plan.steps = steps;
  plan.rule = {[&](const pipeline_shape&, stage_id s) { return (*policies)->make(s); },
               dispatch_mode::in_order};
  if (auto covered = table->covers(plan); !covered) FAIL(covered.message());
  const auto ran = simulate::run(plan, *table);
  if (!ran) FAIL(ran.message());
  return ran->makespan;
}

}  // namespace

TEST_CASE("the durations of a run replay it, except for its launch gaps") {
  const auto p = all_of(two_stages());
  CHECK(durations_csv(p) ==
        "step,stage,chunk,mb,kind,ms\n"
        "1,0,0,0,F,0.010000\n1,0,0,0,BW,0.020000\n1,0,0,0,grad,0.002000\n"
        "1,0,0,1,F,0.010000\n1,0,0,1,BW,0.020000\n1,0,0,1,grad,0.003000\n"
        "1,1,0,0,F,0.010000\n1,1,0,0,BW,0.013000\n1,1,0,0,act,0.002000\n"
        "1,1,0,1,F,0.011000\n1,1,0,1,BW,0.022000\n");
  // Of 95 us, 2 went before the first task began, and 1 each before F0 and F1 of stage 1.
  CHECK(replayed(p, "one_f_one_b", 1) == us(91));
}

TEST_CASE("a task takes as long as its slowest rank: with delay in CSV, without delay in TOML") {
  hand_made t;
  t.run("ranks", 1)
      .task(0, "F0", 0, 0, 10, {.rank = 0, .seq = 0})
      .task(0, "F0", 0, 1, 31, {.rank = 1, .seq = 0, .delay = 18})
      .task(0, "B0", 31, 31, 40, {.rank = 0, .seq = 1})
      .task(0, "B0", 31, 31, 38, {.rank = 1, .seq = 1})
      .task(0, "W0", 40, 40, 42, {.rank = 0, .seq = 2})
      .task(0, "W0", 40, 40, 43, {.rank = 1, .seq = 2});
  const auto p = all_of(t);
  CHECK_THAT(durations_csv(p), Contains("1,0,0,0,F,0.030000\n1,0,0,0,B,0.009000\n"
                                        "1,0,0,0,W,0.003000\n"));
  const auto toml = cost_toml(p, "a trace", 0.5);
  CHECK_THAT(toml, Contains("\n[cost]\nforward_ms = [0.012000]\nbackward_ms = [0.009000]\n"
                            "weight_ms = [0.003000]\n") &&
                       Contains("No link_ms: no stage waited for a message") &&
                       !Contains("link_ms =") && !Contains("assumed"));
}

TEST_CASE("medians are over microbatches, steps and replicas, and a job reads them") {
  hand_made t;
  // Three microbatches in two steps: forwards of 10 to 60 us.
  t.run("steps", 1);
  int at = 0;
  for (int step = 0; step < 2; ++step)
    for (int mb = 0; mb < 3; ++mb) {
      const auto number = std::to_string(mb);
      const int f = 10 * (1 + 3 * step + mb);
      t.task(0, "F" + number, at, at, at + f, {.step = step});
      t.task(0, "BW" + number, at + f, at + f, at + f + 40, {.step = step});
      at += f + 40;
    }
  const auto p = all_of(t);
  CHECK(p.steps.size() == 2);
  const auto toml = cost_toml(p, "a \"trace\"\n", 0.25);
  CHECK_THAT(
      toml,
      Contains("2 steps from 0 to 1, 1 stage, 1 chunk, 3 microbatches") &&
          Contains(R"("a \"trace\"\n")") &&
          Contains("#   F              6      0.012500      0.035000      0.057500") &&
          Contains("1 of 1 stages never split their backward (BW): backward_ms is 0.25 of it"));
  const auto j = job_with(toml, "stages = 1\nmicrobatches = 3\n");
  CHECK(j.cost.forward_ms == std::vector{0.035});
  CHECK(j.cost.backward_ms == std::vector{0.01});
  CHECK(j.cost.weight_ms == std::vector{0.03});
}

TEST_CASE("[cost] has one entry per stage and the median of the messages") {
  const auto toml = cost_toml(all_of(two_stages()), "x", 0.5);
  const auto j = job_with(toml, "stages = 2\nmicrobatches = 2\n");
  CHECK(j.cost.forward_ms == std::vector{0.01, 0.0105});
  CHECK(j.cost.backward_ms == std::vector{0.01, 0.00875});
  CHECK(j.cost.weight_ms == j.cost.backward_ms);
  CHECK(j.cost.link_ms == 0.002);
  CHECK_THAT(toml, Contains("message        3"));
}

TEST_CASE("if a stage splits some backwards, only the split ones count") {
  hand_made t;
  t.run("both", 1)
      .task(0, "F0", 0, 0, 1)
      .task(0, "F1", 1, 1, 2)
      .task(0, "BW0", 2, 2, 92)
      .task(0, "B1", 92, 92, 95)
      .task(0, "W1", 95, 95, 99);
  const auto toml = cost_toml(all_of(t), "x", 0.5);
  CHECK_THAT(toml,
             Contains("backward_ms = [0.003000]\nweight_ms = [0.004000]") && !Contains("assumed"));
}

TEST_CASE("CSV has the durations of replica 0, TOML the medians of all replicas") {
  hand_made t;
  t.process(1, "r: replica 0 stage 0")
      .process(2, "r: replica 1 stage 0")
      .task(1, "F0", 0, 0, 10)
      .task(1, "BW0", 10, 10, 20)
      .task(2, "F0", 0, 0, 30)
      .task(2, "BW0", 30, 30, 40);
  const auto p = all_of(t);
  CHECK(p.replicas == 2);
  CHECK_THAT(durations_csv(p), Contains("1,0,0,0,F,0.010000\n") && !Contains("0.030000"));
  CHECK_THAT(cost_toml(p, "x", 0.5), Contains("forward_ms = [0.020000]"));
}

TEST_CASE("incomplete steps are skipped, and the others are numbered from 1") {
  hand_made t;
  t.run("cut", 1);
  for (int step = 0; step < 4; ++step) {
    const int at = 100 * step;
    t.task(0, "F0", at, at, at + 10 + step, {.step = step});
    if (step != 1) t.task(0, "B0", at + 20, at + 20, at + 30, {.step = step});
    if (step != 3) t.task(0, "W0", at + 30, at + 30, at + 40, {.step = step});
  }
  const auto p = all_of(t);
  CHECK(p.steps == std::vector{step_id{0}, step_id{2}});
  CHECK(p.cut_steps == 2);
  CHECK_THAT(durations_csv(p), Contains("\n2,0,0,0,F,0.012000\n") && !Contains("\n3,"));
  CHECK(replayed(p, "zb_h1", 2) == us(30 + 32));

  CHECK(refusal(t, 1, 1) ==
        "expected a step of run \"cut\" with every task, got step 1 without B0 of stage 0");
  CHECK(refusal(t, 3, 3) ==
        "expected a step of run \"cut\" with every task, got step 3 without W0 of stage 0");
  CHECK(refusal(t, 7, 9) == "expected a step from 0 to 3 of run \"cut\", got 7:9");
}

TEST_CASE("a message counts if its receiver waited for it and the clocks are consistent") {
  hand_made t;
  // Stage 1 waits for F0, but F1 has already arrived; BW0 seems to arrive before it was sent.
  t.run("messages", 2)
      .task(0, "F0", 0, 0, 10)
      .task(0, "F1", 10, 10, 20)
      .wait(1, "input", "F0", 0, 15)
      .task(1, "F0", 15, 15, 25)
      .task(1, "BW0", 25, 25, 45)
      .task(1, "F1", 45, 45, 55)
      .task(1, "BW1", 55, 55, 75)
      .wait(0, "in_order", "BW0", 20, 44)
      .task(0, "BW0", 44, 44, 64)
      .task(0, "BW1", 76, 76, 96);
  const auto p = all_of(t);
  REQUIRE(p.messages.size() == 1);
  CHECK(p.messages[0].took == us(5));
  CHECK(p.messages[0].to == virtual_stage_id{1});
  CHECK_THAT(durations_csv(p), Contains("1,1,0,0,act,0.005000") && !Contains("grad"));
}

TEST_CASE("with chunks, [cost] is in the order of the model, and a stage sends nothing to itself") {
  hand_made t;
  // V placement on two stages: 0, 1, then chunk 1 of stage 1 and of stage 0.
  t.run("v", 2)
      .task(0, "F0", 0, 0, 1)
      .wait(1, "input", "F0", 0, 2)
      .task(1, "F0", 2, 2, 4)
      .wait(1, "input", "F0.1", 4, 5)
      .task(1, "F0.1", 5, 5, 8)
      .wait(0, "input", "F0.1", 1, 9)
      .task(0, "F0.1", 9, 9, 13)
      .task(0, "BW0.1", 13, 13, 14)
      .task(1, "BW0.1", 15, 15, 16)
      .task(1, "BW0", 16, 16, 17)
      .task(0, "BW0", 18, 18, 19);
  const auto p = all_of(t);
  REQUIRE(p.shape.layout == placement::v);
  CHECK(p.messages.size() == 2);
  CHECK_THAT(cost_toml(p, "x", 0.5),
             Contains("forward_ms = [0.001000, 0.002000, 0.003000, 0.004000]"));
  CHECK_THAT(durations_csv(p), Contains("1,0,1,0,act,0.001000"));
}

}  // namespace rrfp::report::testing

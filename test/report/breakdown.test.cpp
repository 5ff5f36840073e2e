// Every nanosecond of a rank is busy or has exactly one cause of idle time.
#include <catch2/catch.hpp>

#include <rrfp/report/breakdown.hpp>

#include "hand_made.hpp"

namespace rrfp::report::testing {
namespace {

using causes = std::array<nanoseconds, idle_causes>;

/// In the order of idle_cause, in microseconds.
causes idle(std::array<std::int64_t, idle_causes> microseconds) {
  causes c{};
  std::transform(microseconds.begin(), microseconds.end(), c.begin(), us);
  return c;
}

std::string text_of(const std::vector<gap>& gaps) {
  std::string text;
  for (const auto& g : gaps)
    text +=
        fmt::format("{} {}-{}{}{}\n", name(g.why), g.begin / 1000, g.end / 1000,
                    g.head ? " " + to_string(*g.head) : "", g.other_ready ? " although ready" : "");
  return text;
}

}  // namespace

TEST_CASE("two stages: fill, waits for gradients, launch gaps and drain") {
  const auto file = two_stages().read();
  const auto t = all_steps(file.runs[0]);
  CHECK(t.begin() == 0);
  CHECK(t.wall() == us(95));
  const auto stages = breakdown_by_stage(t);
  REQUIRE(stages.size() == 2);
  //                           act grad mem ranks launch head tail between
  CHECK(stages[0].idle_by_cause == idle({0, 32, 0, 0, 2, 1, 0, 0}));
  CHECK(stages[0].busy_by_kind == std::array<nanoseconds, 4>{us(20), 0, 0, us(40)});
  CHECK(stages[1].idle_by_cause == idle({0, 0, 0, 0, 2, 14, 23, 0}));
  CHECK(stages[1].busy_by_kind == std::array<nanoseconds, 4>{us(21), 0, 0, us(35)});
  for (const auto& s : stages) CHECK(s.busy() + s.idle() == s.wall);
  CHECK(text_of(t.lanes[0].gaps) ==
        "head 0-1\nlaunch gap 1-2\ngradient 22-40 BW0\nlaunch gap 40-41\ngradient 61-75 BW1\n");
}

TEST_CASE("waits for memory, for the sequence and for a missing input are distinguished") {
  const auto file = hand_made{}
                        .run("waits", 1)
                        .task(0, "F0", 0, 0, 10)
                        .wait(0, "memory", "F1", 11, 20)
                        .task(0, "F1", 20, 20, 30)
                        .wait(0, "in_order", "BW0", 30, 38)
                        .wait(0, "input", "BW0", 38, 45)
                        .task(0, "BW0", 45, 47, 50)
                        .wait(0, "input", "F2", 50, 60)
                        .task(0, "F2", 60, 60, 61)
                        .read();
  const auto t = all_steps(file.runs[0]);
  // The time before a recorded wait has the same cause: nothing could be launched then, either.
  CHECK(text_of(t.lanes[0].gaps) ==
        "memory 10-20 F1\n"
        "gradient 30-38 BW0 although ready\n"
        "gradient 38-45 BW0\n"
        "launch gap 45-47\n"
        "activation 50-60 F2\n");
  const auto b = breakdown_by_stage(t)[0];
  CHECK(b.other_ready == us(8));
  CHECK(b.busy() + b.idle() == b.wall);
}

TEST_CASE(
    "a finished rank waits for the other ranks of its stage, then for what the stage waits for") {
  const auto file = hand_made{}
                        .run("ranks", 1)
                        .task(0, "F0", 0, 0, 10, {.rank = 0, .seq = 0})
                        .task(0, "F0", 0, 0, 14, {.rank = 1, .seq = 0})
                        .wait(0, "input", "BW0", 15, 20)
                        .task(0, "BW0", 20, 21, 30, {.rank = 0, .seq = 1})
                        .task(0, "BW0", 20, 20, 31, {.rank = 1, .seq = 1})
                        .task(0, "W0", 32, 33, 40, {.rank = 0, .seq = 2})
                        .task(0, "W0", 32, 32, 40, {.rank = 1, .seq = 2})
                        .read();
  const auto t = all_steps(file.runs[0]);
  REQUIRE(t.lanes.size() == 2);
  CHECK(text_of(t.lanes[0].gaps) ==
        "ranks behind 10-14\ngradient 14-20 BW0\nlaunch gap 20-21\n"
        "ranks behind 30-31\nlaunch gap 31-33\n");
  CHECK(text_of(t.lanes[1].gaps) == "gradient 14-20 BW0\nlaunch gap 31-32\n");
  const auto stage = breakdown_by_stage(t)[0];
  CHECK(stage.ranks == 2);
  CHECK(stage.wall == us(80));
  CHECK(stage.busy() + stage.idle() == stage.wall);
}

TEST_CASE("a task that was launched before its rank was free has only a launch gap") {
  const auto file = hand_made{}
                        .run("lookahead", 1)
                        .task(0, "F0", 0, 0, 10)
                        .wait(0, "input", "BW0", 3, 30)  // after F1 was launched, none was ready
                        .task(0, "F1", 2, 12, 20)
                        .task(0, "BW0", 30, 30, 40)
                        .read();
  CHECK(text_of(all_steps(file.runs[0]).lanes[0].gaps) == "launch gap 10-12\ngradient 20-30 BW0\n");
}

TEST_CASE("between steps every rank is idle for the same time") {
  const auto file = hand_made{}
                        .run("steps", 2)
                        .task(0, "F0", 0, 0, 10, {.step = 3})
                        .task(0, "BW0", 40, 40, 60, {.step = 3})
                        .task(1, "F0", 12, 12, 22, {.step = 3})
                        .task(1, "BW0", 22, 22, 38, {.step = 3, .delay = 6})
                        .wait(0, "complete", "the next step", 60, 70, 3)
                        .wait(1, "complete", "the next step", 38, 72, 3)
                        .wait(0, "input", "F0", 70, 71, 4)
                        .wait(1, "input", "F0", 72, 83, 4)
                        .task(0, "F0", 71, 71, 81, {.step = 4})
                        .task(1, "F0", 83, 84, 90, {.step = 4})
                        .read();
  const auto t = all_steps(file.runs[0]);
  REQUIRE(t.steps.size() == 2);
  CHECK(t.steps[1].begin == us(70));
  CHECK(text_of(t.lanes[1].gaps) ==
        "head 0-12\ntail 38-60\nbetween steps 60-70\nhead 70-83\nlaunch gap 83-84\n");
  const auto stages = breakdown_by_stage(t);
  CHECK(stages[1].delay == us(6));
  for (const auto& s : stages) {
    CHECK(s.idle_by_cause[static_cast<std::size_t>(idle_cause::between_steps)] == us(10));
    CHECK(s.busy() + s.idle() == s.wall);
  }

  const auto second = make_timeline(file.runs[0], step_id{4}, step_id{9});
  REQUIRE(second.ok());
  CHECK(second->wall() == us(20));
  const auto none = make_timeline(file.runs[0], step_id{5}, step_id{9});
  REQUIRE_FALSE(none.ok());
  CHECK(none.message() == "expected a step from 3 to 4 of run \"steps\", got 5:9");
}

TEST_CASE("a stage holds the slots of its last task and the bytes of its fullest rank") {
  const auto file = hand_made{}
                        .run("held", 1)
                        .task(0, "F0", 0, 0, 10, {.rank = 0, .seq = 0, .slots = 1, .bytes = 100})
                        .task(0, "F0", 0, 0, 12, {.rank = 1, .seq = 0, .slots = 1, .bytes = 110})
                        .task(0, "F1", 12, 12, 20, {.rank = 0, .seq = 1, .slots = 2, .bytes = 200})
                        .task(0, "F1", 12, 12, 20, {.rank = 1, .seq = 1, .slots = 2, .bytes = 210})
                        .task(0, "W0", 20, 20, 30, {.rank = 0, .seq = 2, .slots = 2, .bytes = 200})
                        .read();
  const auto t = all_steps(file.runs[0]);
  CHECK(held_over_time(t, replica_id{0}, stage_id{0}) ==
        std::vector<held>{{us(10), 1, 100}, {us(12), 1, 110}, {us(20), 2, 210}});
}

TEST_CASE("the figures of a run are those of its table: steps and bubble without evaluations") {
  hand_made t;
  t.run("evaluated", 2);
  for (int step = 0; step < 3; ++step) {
    // 300 us pass between the steps, as an evaluation takes them.
    const int at = step * 400;
    t.task(0, "F0", at, at, at + 40, {.step = step, .slots = 2, .bytes = 100})
        .task(1, "F0", at + 40, at + 40, at + 80, {.step = step, .slots = 1, .bytes = 300});
  }
  const auto bare = t.read();
  const auto guessed = figures_of(all_steps(bare.runs[0]));
  CHECK(guessed.step_ms == Approx(.080));
  CHECK(guessed.bubble == Approx(.5));
  CHECK(guessed.slots_peak == 2);
  CHECK(guessed.bytes_peak == 300);
  for (int step = 0; step < 3; ++step) t.step(step, step * 400, 90 + step, 310 + step);
  const auto recorded = t.read();
  const auto known = figures_of(all_steps(recorded.runs[0]));
  CHECK(known.step_ms == Approx(.091));
  CHECK(known.bubble == Approx(.5));
  CHECK(known.bytes_peak == 312);
  const auto first = make_timeline(recorded.runs[0], step_id{0}, step_id{0});
  CHECK(figures_of(*first).step_ms == Approx(.090));
}

}  // namespace rrfp::report::testing

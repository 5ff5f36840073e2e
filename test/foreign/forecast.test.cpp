// A replay of a recorded order takes as long as the recording; other schedules run on its times.
#include <catch2/catch.hpp>

#include <rrfp/forecast/forecast.hpp>
#include <rrfp/policies/registry.hpp>

#include "hand_made.hpp"

namespace rrfp::foreign::testing {
namespace {

/// 1F1B on two stages with messages of 1 ms; the second F of stage 0 takes `slow` ms.
found_run one_f_one_b(int steps, double slow) {
  std::string csv = "stage,microbatch,kind,step,start,end\n";
  for (int step = 0; step < steps; ++step) {
    const double zero = 1000 * step;
    double free[2] = {zero, zero};
    std::map<std::pair<int, int>, double> forward, backward;
    const auto add = [&](int stage, int mb, const char* kind, double ready, double took) {
      const auto begin = std::max(free[stage], ready);
      free[stage] = begin + took;
      csv += fmt::format("{},{},{},{},{},{}\n", stage, mb, kind, step, begin, free[stage]);
      return free[stage];
    };
    const auto f = [&](int stage, int mb) {
      const double ready = stage == 0 ? zero : forward[{0, mb}] + 1;
      forward[{stage, mb}] = add(stage, mb, "F", ready, stage == 0 && mb == 1 ? slow : 10);
    };
    const auto b = [&](int stage, int mb) {
      const double ready = stage == 1 ? zero : backward[{1, mb}] + 1;
      backward[{stage, mb}] = add(stage, mb, "BW", ready, 20);
    };
    f(0, 0), f(0, 1);
    for (int mb = 0; mb < 4; ++mb) {
      f(1, mb), b(1, mb), b(0, mb);
      if (mb + 2 < 4) f(0, mb + 2);
    }
  }
  written files;
  files.add("tasks.csv", csv);
  return files.run();
}

forecast::forecast forecast_of(const found_run& found) {
  auto made = forecast::make_forecast(found.run, policies::registry(), 0.5);
  INFO((made ? std::string{} : made.message()));
  REQUIRE(made.ok());
  return *std::move(made);
}

const forecast::outcome& outcome_of(const forecast::forecast& f, const std::string& policy) {
  for (const auto& o : f.outcomes)
    if (o.policy == policy) return o;
  FAIL("no outcome " << policy);
  return f.outcomes.front();
}

}  // namespace

TEST_CASE("a recorded schedule is recognised and its replay meets every step") {
  const auto f = forecast_of(one_f_one_b(3, 10));
  CHECK(f.schedule == "one_f_one_b");
  CHECK(f.slots == 2);
  REQUIRE(f.steps.size() == 3);
  for (const auto& s : f.steps) CHECK(s.replayed_ms == Approx(s.measured_ms));
  CHECK(f.message_ms == Approx(1));
  CHECK(f.outcomes.front().policy == "recorded order");
  CHECK(f.outcomes.front().step_ms == Approx(f.measured_ms));
}

TEST_CASE("readiness gains where a recorded order waited beside ready tasks") {
  const auto f = forecast_of(one_f_one_b(1, 60));
  CHECK(f.error_percent < 0.01);
  bool found = false;
  for (const auto& o : f.outcomes) {
    if (o.policy != "bf" || o.slots != 2) continue;
    found = true;
    CHECK(o.step_ms <= f.replayed_ms);
    CHECK_FALSE(o.assumes_split);
  }
  CHECK(found);
  const auto said = forecast::sentence_of(f);
  CHECK(said.find("readiness (bf)") != std::string::npos);
  CHECK(said.find("do not trust") == std::string::npos);
}

TEST_CASE("an even cut spreads the work of each microbatch over the stages") {
  written files;
  files.add("tasks.csv",
            "stage,microbatch,kind,start,end\n0,0,F,0,10\n0,1,F,10,20\n0,0,BW,100,120\n"
            "0,1,BW,190,210\n1,0,F,10,40\n1,0,BW,40,100\n1,1,F,100,130\n1,1,BW,130,190\n");
  const auto uneven = forecast_of(files.run());
  CHECK(uneven.replayed_ms == Approx(210));
  // F takes 20 ms on both, BW 40.
  CHECK(outcome_of(uneven, "even cut").step_ms == Approx(3 * (20 + 40)));
  const auto even = forecast_of(one_f_one_b(1, 10));
  CHECK(outcome_of(even, "even cut").step_ms == Approx(even.replayed_ms));
}

TEST_CASE("two replicas have half of the stages, and half of the microbatches each") {
  const auto f = forecast_of(one_f_one_b(2, 60));
  // One stage with two microbatches each; the slow F is in the first replica.
  const auto o = outcome_of(f, "two replicas");
  CHECK(o.step_ms == Approx(2 * (10 + 20 + 10 + 20) + 50));
  CHECK(o.bubble == Approx(0.5 * 50 / 170));
  CHECK_FALSE(o.assumes_split);
  CHECK(f.notes.size() == 2);
}

TEST_CASE("two replicas of interleaved stages and of a V hold neighbours") {
  for (const bool is_v : {false, true}) {
    // One microbatch after the other; virtual stage v takes v + 1 ms for F, twice that for BW.
    std::string csv = "stage,chunk,microbatch,kind,start,end\n";
    double now = 0;
    for (int mb = 0; mb < 4; ++mb)
      for (int i = 0; i < 16; ++i) {
        const int v = i < 8 ? i : 15 - i;
        const int stage = v < 4 ? v : is_v ? 7 - v : v - 4;
        const double took = (v + 1) * (i < 8 ? 1 : 2);
        csv += fmt::format("{},{},{},{},{},{}\n", stage, v / 4, mb, i < 8 ? "F" : "BW", now,
                           now + took);
        now += took;
      }
    written files;
    files.add("tasks.csv", csv);
    const auto found = files.run();
    CHECK(found.run.shape.layout == (is_v ? placement::v : placement::interleaved));
    const auto f = forecast_of(found);
    const auto o = outcome_of(f, "two replicas");
    // All work of a replica, over its two devices.
    CHECK(o.step_ms * (1 - o.bubble) == Approx(2 * 36 * 3 / 2.0));
  }
}

TEST_CASE("gaps of the framework are no gain of readiness") {
  written files;
  std::string csv = "stage,microbatch,kind,start,end\n";
  for (int mb = 0; mb < 4; ++mb)  // a gap of 1 ms, or of 40 ms, before each F
    csv += fmt::format("0,{0},F,{1},{2}\n0,{0},BW,{2},{3}\n", mb, 100 * mb + (mb == 3 ? 40 : 1),
                       100 * mb + 50, 100 * mb + 100);
  files.add("tasks.csv", csv);
  const auto f = forecast_of(files.run());
  CHECK(outcome_of(f, "bf").step_ms == Approx(outcome_of(f, "recorded order").step_ms));
  CHECK(f.gain_percent(outcome_of(f, "bf")) > 5);
  CHECK(forecast::sentence_of(f).find(": 0.0 % less") != std::string::npos);
}

TEST_CASE("a message that comes after the task before is no gap of the framework") {
  written files;
  files.add("tasks.csv",
            "stage,microbatch,kind,start,end\n0,0,F,0,10\n0,1,F,10,20\n1,0,F,12,22\n"
            "1,0,BW,22,32\n0,0,BW,34,44\n1,1,F,39,49\n1,1,BW,49,59\n0,1,BW,61,71\n");
  const auto f = forecast_of(files.run());
  CHECK(f.error_percent < 0.01);
  CHECK(f.launch_ms == 0);
  CHECK(f.message_ms == Approx(2));
  // Without the 7 ms that F1 came late.
  CHECK(outcome_of(f, "recorded order").step_ms == Approx(71 - 7));
}

TEST_CASE("a replay that is far off says so with the answer") {
  written files;
  files.add("tasks.csv",
            "stage,microbatch,kind,start,end\n"
            "0,0,F,0,50\n0,1,F,0,50\n0,0,BW,10,60\n0,1,BW,10,60\n");
  CHECK(forecast::sentence_of(forecast_of(files.run())).ends_with("do not trust this."));
}

TEST_CASE("tasks without any time give no forecast") {
  written files;
  files.add("tasks.csv", "stage,microbatch,kind,start,end\n0,0,F,1,1\n0,0,BW,2,2\n");
  const auto made = forecast::make_forecast(files.run().run, policies::registry(), 0.5);
  REQUIRE_FALSE(made.ok());
  CHECK(made.message() == "expected tasks that take time, got none");
}

TEST_CASE("the chart has a bar for each row of the table") {
  const auto f = forecast_of(one_f_one_b(1, 60));
  const auto chart = forecast::chart_of(f, "a <run>");
  CHECK(chart.find("a &lt;run&gt;") != std::string::npos);
  std::size_t bars = 0;
  for (auto at = chart.find("<rect"); at != std::string::npos; at = chart.find("<rect", at + 1))
    ++bars;
  CHECK(bars == f.outcomes.size() + 3);  // measured, replayed, and the background
}

TEST_CASE("a schedule that splits backwards says that their shares are assumed") {
  const auto f = forecast_of(one_f_one_b(1, 10));
  for (const auto& o : f.outcomes)
    CHECK(o.assumes_split == (o.policy == "bfw_plus" || o.policy == "zb_h1"));
}

}  // namespace rrfp::foreign::testing

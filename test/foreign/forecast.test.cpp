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
  CHECK(forecast::sentence_of(f).find("readiness (bf)") != std::string::npos);
}

TEST_CASE("a schedule that splits backwards says that their shares are assumed") {
  const auto f = forecast_of(one_f_one_b(1, 10));
  for (const auto& o : f.outcomes)
    CHECK(o.assumes_split == (o.policy == "bfw_plus" || o.policy == "zb_h1"));
}

}  // namespace rrfp::foreign::testing

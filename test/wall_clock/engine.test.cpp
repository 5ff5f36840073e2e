/// Compares the runtime on emulated devices with the simulator on the same cells. Time bounds are
/// wide because machines are shared; bench/paper compares closely.
#include <rrfp/wall_clock/engine.hpp>

#include "../experiment/support.hpp"

#include <catch2/catch.hpp>

namespace rrfp::wall_clock {

using namespace experiment;
using namespace experiment::testing;

namespace {

outcome measured(cell c) {
  c.engine = engine_kind::wall_clock;
  const auto ran = make_engine()->run(c);
  INFO((ran ? "" : ran.message()));
  REQUIRE(ran.ok());
  return *ran;
}

/// In a fixed order nothing is faster than in the simulator, and the memory held is the same.
void check_in_order(const cell& c) {
  const auto expected = run_well(c);
  const auto got = measured(c);
  REQUIRE(got.step_ms.size() == expected.step_ms.size());
  for (std::size_t i = 0; i < got.step_ms.size(); ++i) {
    CHECK(got.step_ms[i] >= expected.step_ms[i]);
    CHECK(got.step_ms[i] < 3 * expected.step_ms[i]);
  }
  CHECK(got.slots_peak == expected.slots_peak);
  CHECK(got.activation_bytes_peak == expected.activation_bytes_peak);
  CHECK(got.held_bytes_peak == expected.held_bytes_peak);
}

}  // namespace

TEST_CASE("a fixed order takes the simulator's time and a little more, blocking or not") {
  for (const auto mode : {run_mode::in_order, run_mode::blocking}) {
    INFO(name(mode));
    auto c = jittered_cell();
    c.steps = 2;
    c.run.mode = mode;
    c.time_scale = 0.5;
    check_in_order(c);
    if (mode == run_mode::blocking) CHECK(measured(c).blocked > 0);
  }
}

TEST_CASE("ranks and replicas run, and memory follows each step's images") {
  auto c = jittered_cell();
  c.workload.options.tp = 2;
  c.workload.options.replicas = 2;
  c.steps = 2;
  check_in_order(c);
}

TEST_CASE("readiness keeps its limits on the wall clock") {
  auto c = jittered_cell();
  c.workload.options.microbatches = 16;
  c.run.mode = run_mode::ready;
  c.run.policy = "bfw";
  c.run.slots = 5;
  const auto o = measured(c);
  CHECK(o.slots_peak <= 5);
  CHECK(o.mean_ms() > 0);
  CHECK(o.idle > 0);
  CHECK(o.idle < 1);
  CHECK(o.blocked == 0);
}

TEST_CASE("lost and duplicate messages are received once, as late as the simulator says") {
  auto c = plain_cell();
  c.weather.conditions.loss_probability = 0.1;
  c.weather.conditions.resend_ms = 15;
  c.weather.conditions.double_probability = 0.3;
  c.workload.cost.link_ms = 0.5;
  check_in_order(c);
  c.run.mode = run_mode::blocking;
  check_in_order(c);
  c.run.mode = run_mode::ready;
  CHECK(measured(c).mean_ms() > run_well(plain_cell()).mean_ms());
}

TEST_CASE("times are in modelled units, whatever the scale") {
  auto c = plain_cell();
  const auto calm = run_well(c).mean_ms();
  c.time_scale = 8;
  const auto o = measured(c);
  CHECK(o.mean_ms() >= calm);
  CHECK(o.mean_ms() < 3 * calm);
}

TEST_CASE("an order that stalls is refused before it runs") {
  auto c = jittered_cell();
  c.run.mode = run_mode::in_order;
  c.run.policy = "gpipe";
  c.run.slots = 2;
  c.engine = engine_kind::wall_clock;
  const auto ran = make_engine()->run(c);
  REQUIRE_FALSE(ran.ok());
  CHECK_THAT(ran.message(), Catch::Matchers::Contains("stalled"));
}

}  // namespace rrfp::wall_clock

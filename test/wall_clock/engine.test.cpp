/// Compares the runtime on emulated devices with the simulator on the same cells. Time bounds are
/// wide because machines are shared; bench/paper compares closely.
#include "cell.hpp"

#include <rrfp/actors/job_session.hpp>
#include <rrfp/policies/registry.hpp>

#include "../experiment/support.hpp"

#include <catch2/catch.hpp>

namespace rrfp::wall_clock {

using namespace experiment;
using namespace experiment::testing;

namespace {

/// As cell_at() does for this engine.
void emulate(cell& c) {
  c.engine = engine_kind::wall_clock;
  c.job.device.kind = job::device_kind::emulated;
  c.job.device.message_bytes = 1;
}

outcome measured(cell c) {
  emulate(c);
  const auto ran = run_on_wall_clock(c);
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
  for (const bool blocking : {false, true}) {
    INFO(blocking);
    auto c = jittered_cell();
    c.job.train.steps = 2;
    if (blocking) block(c);
    c.job.device.time_scale = 0.5;
    check_in_order(c);
    if (blocking) CHECK(measured(c).blocked > 0);
  }
}

TEST_CASE("ranks and replicas run, and memory follows each step's images") {
  auto c = jittered_cell();
  c.job.pipeline.tp = 2;
  c.job.pipeline.replicas = 2;
  c.job.train.steps = 2;
  check_in_order(c);
}

TEST_CASE("ranks apart wait for each other") {
  auto c = jittered_cell();
  make_ready(c, "bfw");
  c.job.pipeline.tp = 4;
  c.job.pipeline.microbatches = 16;
  c.job.jitter.ranks = simulate::rank_delays::apart;
  const auto o = measured(c);
  CHECK(o.ranks > 0);
  CHECK(o.idle >= o.ranks);
  CHECK(o.agreement == agreement_counts{});
}

TEST_CASE("readiness keeps its limits on the wall clock") {
  auto c = jittered_cell();
  c.job.pipeline.microbatches = 16;
  make_ready(c, "bfw");
  c.job.dispatch.slots = 5;
  const auto o = measured(c);
  CHECK(o.slots_peak <= 5);
  CHECK(o.mean_ms() > 0);
  CHECK(o.idle > 0);
  CHECK(o.idle < 1);
  CHECK(o.blocked == 0);
}

TEST_CASE("lost messages are as late as the simulator says") {
  auto c = plain_cell();
  c.job.jitter.loss_probability = 0.1;
  c.job.jitter.resend_ms = 15;
  c.job.cost.link_ms = 0.5;
  check_in_order(c);
  block(c);
  check_in_order(c);
  make_ready(c, "one_f_one_b");
  CHECK(measured(c).mean_ms() > run_well(plain_cell()).mean_ms());
}

TEST_CASE("times are in modelled units, whatever the scale") {
  auto c = plain_cell();
  const auto calm = run_well(c).mean_ms();
  c.job.device.time_scale = 8;
  const auto o = measured(c);
  CHECK(o.mean_ms() >= calm);
  CHECK(o.mean_ms() < 3 * calm);
}

TEST_CASE("an order that stalls is refused before it runs") {
  auto c = jittered_cell();
  c.job.dispatch.mode = dispatch_mode::in_order;
  c.job.dispatch.policy = "gpipe";
  c.job.dispatch.slot_bytes = 1;
  emulate(c);
  const auto ran = run_on_wall_clock(c);
  REQUIRE_FALSE(ran.ok());
  CHECK_THAT(ran.message(), Catch::Matchers::Contains("stalled"));
}

}  // namespace rrfp::wall_clock

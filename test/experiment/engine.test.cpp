#include <catch2/catch.hpp>

#include "support.hpp"

namespace rrfp::experiment {

using namespace testing;

TEST_CASE("1F1B on equal stages takes (m + p - 1) T and idles (p - 1) / (m + p - 1)") {
  const auto o = run_well(plain_cell());
  REQUIRE(o.step_ms.size() == 1);
  CHECK(o.mean_ms() == Approx((8 + 3) * 3.0));
  CHECK(o.idle == Approx(3.0 / 11));
  CHECK(o.blocked == 0);
  CHECK(o.slots_peak == 4);
  CHECK(o.held_bytes_peak == 0);
}

TEST_CASE("a blocking transport is never faster, and the blocked time is reported") {
  auto c = plain_cell();
  c.job.cost.link_ms = 0.5;
  const auto asynchronous = run_well(c);
  block(c);
  const auto blocking = run_well(c);
  CHECK(blocking.mean_ms() > asynchronous.mean_ms());
  CHECK(blocking.blocked > 0);
  CHECK(blocking.blocked < blocking.idle);
}

TEST_CASE("limits hold: slots, the slots of 1F1B, the paper's run-ahead") {
  auto c = jittered_cell();
  c.job.pipeline.microbatches = 32;
  make_ready(c, "bfw");
  CHECK(run_well(c).slots_peak <= 8);
  c.job.dispatch.slots = 3;
  CHECK(run_well(c).slots_peak == 3);
  c.job.dispatch.slots = job::slots_of_1f1b;
  CHECK(run_well(c).slots_peak == 4);
  c.job.dispatch.slots = job::slots_of_stages;
  CHECK(run_well(c).slots_peak == 4);
  c.job.dispatch.slots = 0;
  const auto open = run_well(c).slots_peak;
  study::options_of(c.job).dispatch.run_ahead = 4;
  const auto ahead = run_well(c).slots_peak;
  CHECK(ahead < open);
  // D does not count pending W.
  CHECK(ahead > 4);
}

TEST_CASE("a byte limit holds, and the memory held includes more than the activations") {
  auto c = jittered_cell();
  make_ready(c, "bf");
  c.job.dispatch.slots = 0;
  const auto open = run_well(c);
  CHECK(open.held_bytes_peak > open.activation_bytes_peak);
  c.job.dispatch.slot_bytes = open.activation_bytes_peak / 2;
  CHECK(run_well(c).activation_bytes_peak <= open.activation_bytes_peak / 2);
}

TEST_CASE("equal cells give equal outcomes, and another seed another outcome") {
  auto c = jittered_cell();
  c.job.train.steps = 2;
  const auto a = run_well(c);
  CHECK(run_well(c).step_ms == a.step_ms);
  CHECK(a.step_ms[0] != a.step_ms[1]);
  c.job.jitter.seed = 8;
  CHECK(run_well(c).step_ms != a.step_ms);
}

TEST_CASE("a step ends with its slowest replica and the gradient exchange") {
  auto c = jittered_cell();
  const auto one = run_well(c);
  c.job.pipeline.replicas = 2;
  CHECK(run_well(c).mean_ms() > one.mean_ms());
}

TEST_CASE("ranks apart agree by candidates, and each gathering of picks takes its time") {
  auto c = jittered_cell();
  make_ready(c, "bfw");
  c.job.pipeline.tp = 4;
  c.job.pipeline.microbatches = 16;
  c.job.jitter.ranks = simulate::rank_delays::apart;
  const auto by_arrivals = run_well(c);
  CHECK(by_arrivals.ranks > 0);
  CHECK(by_arrivals.agreement == agreement_counts{});
  c.agreement = rank_agreement::candidates;
  c.gather_ms = 1;
  const auto o = run_well(c);
  const auto tasks = std::uint64_t{3} * c.job.pipeline.stages * 16;
  CHECK(o.ranks > 0);
  CHECK(o.agreement.deferrals > 0);
  CHECK(o.agreement.gathers == tasks + o.agreement.deferrals);
  CHECK(o.gathering * o.mean_ms() * c.job.pipeline.stages >=
        0.999 * static_cast<double>(o.agreement.gathers));
  CHECK(o.idle >= o.ranks + o.gathering + o.deferred);
}

TEST_CASE("a straggler, a pause and a slow link cost time") {
  const auto calm = run_well(plain_cell()).mean_ms();
  auto c = plain_cell();
  c.job.jitter.straggler_factor = 1.5;
  CHECK(run_well(c).mean_ms() > calm * 1.2);
  c = plain_cell();
  c.job.jitter.pause_ms = 40;
  CHECK(run_well(c).mean_ms() > calm + 20);
  c = plain_cell();
  c.job.cost.link_ms = 0.1;
  const auto linked = run_well(c).mean_ms();
  c.job.jitter.slow_link_factor = 20;
  CHECK(run_well(c).mean_ms() > linked);
}

TEST_CASE("readiness gains most where the transport of the baseline blocks") {
  auto c = jittered_cell();
  c.job.pipeline.microbatches = 32;
  const auto asynchronous = run_well(c).mean_ms();
  block(c);
  const auto blocking = run_well(c).mean_ms();
  make_ready(c, "bfw");
  const auto ready = run_well(c).mean_ms();
  CHECK(blocking > asynchronous);
  CHECK(asynchronous > ready);
}

TEST_CASE("without disturbances and images, readiness matches 1F1B at its memory") {
  auto c = plain_cell();
  c.job.pipeline.microbatches = 16;
  const auto in_order = run_well(c).mean_ms();
  make_ready(c, "bf");
  c.job.dispatch.slots = job::slots_of_1f1b;
  CHECK(in_order / run_well(c).mean_ms() >= 0.99);
}

}  // namespace rrfp::experiment

/// The hints that runs derive from their policies, and their effect.
#include <catch2/catch.hpp>

#include "hints.hpp"
#include "support.hpp"

namespace rrfp::experiment {

using namespace testing;

namespace {

/// 16 microbatches by readiness with a hint of this quality.
cell hinted(hint_quality quality) {
  auto c = jittered_cell();
  c.job.pipeline.microbatches = 16;
  make_ready(c, "bfw");
  c.hint = quality;
  return c;
}

std::vector<sequence> orders_of(const cell& c) {
  const cell_policies policies{c};
  const auto hints = policies.make(c.job.dispatch.policy, job::effective_shape(c.job));
  REQUIRE(hints.ok());
  return (*hints)->sequences() != nullptr ? *(*hints)->sequences() : std::vector<sequence>{};
}

}  // namespace

TEST_CASE("a calm order is fixed and does not depend on the weather of the run") {
  const auto calm = orders_of(hinted(hint_quality::calm));
  REQUIRE(calm.size() == 4);
  auto c = hinted(hint_quality::calm);
  c.job.jitter = {};
  c.job.jitter.seed = 7;
  CHECK(orders_of(c) == calm);
  CHECK(orders_of(hinted(hint_quality::own)).empty());
}

TEST_CASE("a stale order is reproducible and differs from the calm order") {
  const auto stale = orders_of(hinted(hint_quality::stale));
  CHECK(orders_of(hinted(hint_quality::stale)) == stale);
  CHECK(stale != orders_of(hinted(hint_quality::calm)));
  auto c = hinted(hint_quality::stale);
  c.job.jitter.seed = 8;
  CHECK(orders_of(c) != stale);
}

TEST_CASE("every hint lets a run end in ready mode, and the policy itself is not the worst") {
  const auto own = run_well(hinted(hint_quality::own)).mean_ms();
  double worst = 0;
  for (const auto quality :
       {hint_quality::reversed, hint_quality::shuffled, hint_quality::calm, hint_quality::stale}) {
    INFO(name(quality));
    const auto o = run_well(hinted(quality));
    CHECK(o.slots_peak <= 8);
    worst = std::max(worst, o.mean_ms());
  }
  CHECK(own < worst);
}

TEST_CASE("a recorded order can be executed in order, within the slots of its recording") {
  for (const auto quality : {hint_quality::calm, hint_quality::stale}) {
    auto c = hinted(quality);
    c.job.dispatch.mode = dispatch_mode::in_order;
    c.job.dispatch.slots = 6;
    const auto o = run_well(c);
    CHECK(o.slots_peak <= 6);
    CHECK(o.mean_ms() > run_well(hinted(hint_quality::own)).mean_ms());
  }
}

TEST_CASE("late messages cost time, but change no work") {
  auto c = hinted(hint_quality::own);
  const auto prompt = run_well(c);
  c.job.jitter.link = simulate::link_jitter::constant;
  c.job.jitter.link_mean_ms = 5;
  CHECK(run_well(c).mean_ms() > prompt.mean_ms());
}

}  // namespace rrfp::experiment

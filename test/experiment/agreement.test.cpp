#include <catch2/catch.hpp>

#include <rrfp/base/statistics.hpp>

#include "agreement.hpp"
#include "support.hpp"

namespace rrfp::experiment {

using namespace testing;
using Catch::Matchers::Contains;

namespace {

outcome took(double ms, double launch_gap_ms = 0) {
  outcome o;
  o.step_ms = {ms};
  o.launch_gap_ms = launch_gap_ms;
  return o;
}

}  // namespace

TEST_CASE("a quantile interpolates between the two nearest values") {
  CHECK(quantile({3, 1, 2}, 0.5) == 2);
  CHECK(quantile({3, 1, 2}, 0) == 1);
  CHECK(quantile({3, 1, 2}, 1) == 3);
  CHECK(quantile({3, 1, 2}, 0.75) == 2.5);
  CHECK(quantile({7}, 0.95) == 7);
  CHECK(median({4, 1, 3, 2}) == 2.5);
  CHECK(median({}) == 0);
}

TEST_CASE(
    "cells that differ by more than 3 % are counted, and how many launch gaps and late tasks "
    "explain") {
  const auto e = good("seeds = [1, 2, 3]\n[[workload]]\nname = \"w\"\n[[run]]\nname = \"r\"\n");
  std::vector<outcome> simulated{took(100), took(100), took(200)};
  std::vector<outcome> measured{took(102), took(110, 9), took(180)};
  for (auto* side : {&simulated, &measured})
    for (auto& o : *side) o.idle = 0.5;
  measured[1].idle = 1 - 54.0 / 110;  // its tasks took 54 ms instead of 50
  const auto all = differences_of(e, simulated, measured);
  REQUIRE(all.size() == 3);
  CHECK(all[2].time == Approx(-0.1));
  CHECK(all[1].launch_gap == Approx(0.09));
  CHECK(all[1].late_tasks == Approx(0.04));
  const auto a = agreement_of(all);
  CHECK(a.cells == 3);
  CHECK(a.median == Approx(0.02));
  CHECK(a.median_size == Approx(0.1));
  CHECK(a.disagreeing == 2);
  CHECK(a.explained == 1);
  const auto text = agreement_table(e, simulated, measured);
  CHECK_THAT(text, Contains("+2.00 %") && Contains("2 of 3") && Contains("all cells"));
}

}  // namespace rrfp::experiment

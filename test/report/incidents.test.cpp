/// Losses of nodes and stragglers: in the trace, and on the page.
#include <catch2/catch.hpp>

#include <rrfp/report/late.hpp>
#include <rrfp/report/page.hpp>

#include "hand_made.hpp"

namespace rrfp::report::testing {
namespace {

using Catch::Matchers::Contains;

/// Steps of two stages and one microbatch; stage 1 works so long in each.
hand_made steps_of(int steps, int slow) {
  hand_made t;
  t.run("job", 2);
  int at = 0;
  for (int step = 0; step < steps; ++step) {
    hand_made::details d;
    d.step = step;
    t.task(0, "F0", at, at, at + 10, d);
    t.task(1, "F0", at + 10, at + 10, at + 10 + slow, d);
    t.task(1, "BW0", at + 10 + slow, at + 10 + slow, at + 10 + 2 * slow, d);
    t.task(0, "BW0", at + 10 + 2 * slow, at + 10 + 2 * slow, at + 20 + 2 * slow, d);
    at += 30 + 2 * slow;
  }
  return t;
}

}  // namespace

TEST_CASE("a loss in a trace is read with what it cost, and listed on the page") {
  auto t = two_stages();
  t.event(R"({"name":"recovery","cat":"recovery","ph":"X","pid":0,"tid":1001,"ts":0,"dur":0,)"
          R"("args":{"lost":"node 1 (<stage 1>) was lost","step":12,"from_copies":1,)"
          R"("repeated_steps":2,"held_us":1534000.000}})");
  const auto file = t.read();
  REQUIRE(file.runs[0].recoveries.size() == 1);
  const auto& r = file.runs[0].recoveries[0];
  CHECK(r.lost == "node 1 (<stage 1>) was lost");
  CHECK(r.step == 12);
  CHECK(r.from_copies);
  CHECK(r.repeated_steps == 2);
  CHECK(r.held == 1'534'000'000);
  const auto html = html_of({"a report", {}, {all_steps(file.runs[0])}});
  CHECK_THAT(html, Contains("Losses of nodes") && Contains("node 1 (&lt;stage 1&gt;) was lost") &&
                       Contains("copies") && Contains("1.5"));
  CHECK_THAT(html_of({"a report", {}, {all_steps(two_stages().read().runs[0])}}),
             !Contains("Losses of nodes"));
}

TEST_CASE("a slow stage of a trace is a straggler, with the steps in which it was late") {
  const auto file = steps_of(25, 30).read();
  const auto line = all_steps(file.runs[0]);
  const auto found = find_late(line);
  REQUIRE(found.size() == 1);
  CHECK(found[0].what.stage == stage_id{1});
  CHECK(found[0].what.late == Approx(40.0 / 80));
  CHECK(found[0].what.waiting == Approx(40.0 / 80));  // stage 0 waits 60, stage 1 waits 20
  CHECK(found[0].first == step_id{19});
  CHECK(found[0].last == step_id{24});
  const auto html = html_of({"a report", {}, {line}});
  CHECK_THAT(html, Contains("Stragglers") && Contains("50 % of the time") && Contains("19 to 24"));
}

TEST_CASE("a balanced trace, and one of few steps, has no stragglers") {
  const auto even = steps_of(25, 10).read();
  CHECK(find_late(all_steps(even.runs[0])).empty());
  const auto brief = steps_of(19, 30).read();
  CHECK(find_late(all_steps(brief.runs[0])).empty());
  CHECK_THAT(html_of({"a report", {}, {all_steps(brief.runs[0])}}), !Contains("Stragglers"));
}

}  // namespace rrfp::report::testing

#include <catch2/catch.hpp>

#include <algorithm>
#include <sstream>

#include <fmt/format.h>

#include "agreement.hpp"
#include "page.hpp"
#include "store.hpp"
#include "support.hpp"
#include "tables.hpp"

namespace rrfp::experiment {

using namespace testing;
using Catch::Matchers::Contains;

namespace {

experiment slow_and_quick() {
  return good(
      "seeds = [1, 2]\nablation = [\"slow\", \"quick\"]\n"
      "[[workload]]\nname = \"w\"\ncost.preset = \"gpt3-large\"\npaper.in_order_s = 3\n"
      "paper.bfw = 1.5\n"
      "[[run]]\nname = \"slow\"\ndispatch.mode = \"in-order\"\ndispatch.policy = \"one_f_one_b\"\n"
      "[[run]]\nname = \"quick\"\npaper = \"bfw\"\n");
}

outcome of(double ms, std::uint64_t held) {
  outcome o;
  o.step_ms = {ms};
  o.idle = 0.5;
  o.blocked = 0.25;
  o.slots_peak = 4;
  o.activation_bytes_peak = held / 2;
  o.held_bytes_peak = held;
  return o;
}

const std::vector<outcome> outcomes_of_both{of(300, 8 * gib), of(500, 10 * gib), of(100, 20 * gib),
                                            of(300, 30 * gib)};

}  // namespace

TEST_CASE("speed-ups compare sums over paired seeds; memory is that of the worst seed") {
  const auto e = slow_and_quick();
  const auto s = summary_of(e, outcomes_of_both, 0, 0, 1);
  CHECK(s.step_ms == 200);
  CHECK(s.speed_up == 2);
  CHECK(s.held_bytes_peak == 30 * gib);
  CHECK(summary_of(e, outcomes_of_both, 0, 0, 0).speed_up == 1);
}

TEST_CASE("an experiment without weathers runs under the jitter of its job, and says so") {
  const std::string cells = "[[workload]]\nname = \"w\"\n[[run]]\nname = \"r\"\n";
  CHECK(good(cells).weathers[0].name == "none");
  CHECK(good("jitter.compute = \"lognormal\"\n" + cells).weathers[0].name == "of the job");
  CHECK(good("jitter.spread = \"stalls\"\njitter.stall_probability = 0.1\n" + cells)
            .weathers[0]
            .name == "of the job");
  CHECK(good("jitter.straggler_factor = 2.0\n" + cells).weathers[0].name == "of the job");
}

TEST_CASE("the tables show gains, the paper's figures, and memory above the device's") {
  const auto e = slow_and_quick();
  CHECK_THAT(results_table(e, outcomes_of_both), Contains("w - weather none") &&
                                                     Contains("2.00x") && Contains("1.50") &&
                                                     Contains("30.0!") && Contains("10.0\n"));
  CHECK_THAT(ablation_table(e, outcomes_of_both), Contains("2.000x"));
  CHECK_THAT(paper_table(e, outcomes_of_both),
             Contains("3.00 /  0.40") && Contains("1.50 / 2.00 (30.0!)") &&
                 Contains("quick            1 of 1 rows      1.50 / 2.00\n"));
}

TEST_CASE("the tables fit 80 columns, whatever the names, and show no columns without a value") {
  std::string text;
  for (const auto* const name :
       {"slow", "a run whose name is as long as the names of runs can get"}) {
    INFO(name);
    const auto run = fmt::format("name = \"{}\"\n", name);
    std::string weathers = "[[weather]]\njitter.level = \"J0\"\n";
    for (int i = 0; i < 6; ++i)
      weathers +=
          fmt::format("[[weather]]\nname = \"weather number {}\"\njitter.level = \"J1\"\n", i);
    const auto e = good("seeds = [1]\ntrain.steps = 20\nablation = [\"" + std::string{name} +
                        "\", \"quick\"]\n[[workload]]\nname = \"w\"\ncost.preset = "
                        "\"gpt3-large\"\npaper.in_order_s = 3\npaper.bfw = 1.5\npaper.bf = 1.25\n"
                        "[[run]]\n" +
                        run +
                        "dispatch.policy = \"one_f_one_b\"\n"
                        "[[run]]\nname = \"quick\"\npaper = \"bfw\"\n"
                        "[[run]]\nname = \"another\"\npaper = \"bf\"\n" +
                        weathers);
    auto one = of(123456.7, 100 * gib);
    one.step_ms.resize(20, 123456.7);
    one.ranks = 0.1;
    one.agreement = {400, 1000000};
    const std::vector<outcome> all(e.cells(), one);
    for (const auto& table : {results_table(e, all), ablation_table(e, all), weather_table(e, all),
                              spread_table(e, all), breakdown_table(e, all), ranks_table(e, all),
                              paper_table(e, all), agreement_table(e, all, all)}) {
      REQUIRE_FALSE(table.empty());
      std::istringstream lines{table};
      for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 80);
      text += table;
    }
    CHECK_THAT(weather_table(e, all),
               Contains(" weather number 0") && Contains(" weather number 5\n"));
  }
  CHECK_THAT(text, Contains("act. GiB") && Contains("paper"));
  const auto e = good("seeds = [1]\n[[workload]]\nname = \"w\"\n[[run]]\nname = \"r\"\n");
  CHECK_THAT(results_table(e, {of(1, 0)}), !Contains("GiB") && !Contains("paper"));
}

TEST_CASE("tables that were not requested are not printed") {
  const auto e = good("seeds = [1]\n[[workload]]\nname = \"w\"\n[[run]]\nname = \"r\"\n");
  CHECK(ablation_table(e, {of(1, 0)}).empty());
  CHECK(paper_table(e, {of(1, 0)}).empty());
}

TEST_CASE("weathers are compared with the first one") {
  const auto e = good(
      "seeds = [1]\n[[workload]]\nname = \"w\"\n[[run]]\nname = \"r\"\n"
      "[[weather]]\njitter.level = \"J0\"\n[[weather]]\njitter.level = \"J1\"\n");
  CHECK_THAT(weather_table(e, {of(200, 0), of(250, 0)}),
             Contains("slow-down relative to weather J0") && Contains("25.00 %"));
  CHECK(weather_table(slow_and_quick(), outcomes_of_both).empty());
}

TEST_CASE("the spread is printed for many steps, but not for few") {
  const auto e =
      good("seeds = [1]\ntrain.steps = 21\n[[workload]]\nname = \"w\"\n[[run]]\nname = \"r\"\n");
  outcome o;
  for (int i = 0; i <= 20; ++i) o.step_ms.push_back(100 + i);
  CHECK_THAT(spread_table(e, {o}), Contains("spread of 21 steps") && Contains("101.0") &&
                                       Contains("110.0") && Contains("119.0") &&
                                       Contains("0.164") && Contains("0.091"));
  CHECK(spread_table(slow_and_quick(), outcomes_of_both).empty());
}

TEST_CASE("a step splits into tasks, waiting and launch gap") {
  const auto e = good("seeds = [1]\n[[workload]]\nname = \"w\"\n[[run]]\nname = \"r\"\n");
  outcome o;
  o.step_ms = {100};
  o.idle = 0.4;
  o.launch_gap_ms = 1.5;
  CHECK_THAT(breakdown_table(e, {o}), Contains("100.0   60.0     38.5        1.50"));
}

TEST_CASE("what ranks waited for each other is printed if they did") {
  const auto e = good("seeds = [1]\n[[workload]]\nname = \"w\"\n[[run]]\nname = \"r\"\n");
  auto o = of(200, 0);
  CHECK(ranks_table(e, {o}).empty());
  o.ranks = 0.1;
  o.gathering = 0.05;
  o.deferred = 0.01;
  o.agreement = {400, 10};
  CHECK_THAT(ranks_table(e, {o}),
             Contains("200.0       20.0      10.00      2.00         10  2.50 %"));
}

TEST_CASE("the CSV has one row per cell") {
  const auto text = results_csv(slow_and_quick(), {{engine_kind::simulator, outcomes_of_both}});
  CHECK(std::count(text.begin(), text.end(), '\n') == 5);
  CHECK_THAT(
      text,
      Contains("\n3,simulator,\"w\",\"none\",\"quick\",ready,\"bfw_plus\",own,2,300.000000,"));
}

TEST_CASE("the summary has means and sample deviations over the seeds") {
  const auto s = summary_of(slow_and_quick(), outcomes_of_both, 0, 0, 1);
  CHECK(s.step_ms_deviation == Approx(141.421356));
  CHECK(s.speed_up_deviation == Approx(0.942809));  // of 300 / 100 and 500 / 300
  const auto text = summary_csv(slow_and_quick(), {{engine_kind::simulator, outcomes_of_both}});
  CHECK(std::count(text.begin(), text.end(), '\n') == 3);
  CHECK_THAT(text, Contains("\nsimulator,\"w\",\"none\",\"slow\",in-order,\"one_f_one_b\",own,2,"
                            "400.000000,141.421356,1.000000,0.000000,0.500000,") &&
                       Contains("\nsimulator,\"w\",\"none\",\"quick\",ready,\"bfw_plus\",own,2,"
                                "200.000000,141.421356,2.000000,0.942809,0.500000,"));
}

TEST_CASE("the summary of one seed has no deviations") {
  const auto e = good("seeds = [1]\n[[workload]]\nname = \"w\"\n[[run]]\nname = \"r\"\n");
  const std::vector<outcome> one{of(200, 0)};
  CHECK(summary_of(e, one, 0, 0, 0).step_ms_deviation == 0);
  CHECK_THAT(summary_csv(e, {{engine_kind::simulator, one}}),
             Contains(",own,1,200.000000,,1.000000,,0.500000,"));
}

TEST_CASE("the figure shows each run with its deviation and needs no style sheet") {
  const auto text = figure_svg(slow_and_quick(), {engine_kind::simulator, outcomes_of_both});
  CHECK(text.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  CHECK(text.ends_with("</svg>\n"));
  CHECK_THAT(text, Contains("w - weather none") && Contains(">slow<") && Contains(">1.00x<") &&
                       Contains(">quick<") && Contains(">2.00x \u00b1 0.94<") &&
                       Contains("speed-up over slow; simulator, with the standard deviation over 2 "
                                "seeds") &&
                       !Contains("class=") && !Contains("var("));
}

}  // namespace rrfp::experiment

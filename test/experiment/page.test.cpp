/// The page shows the figures of the tables, loads nothing, and needs no script for any figure.
#include <catch2/catch.hpp>

#include <regex>

#include "page.hpp"
#include "support.hpp"

namespace rrfp::experiment {

using namespace testing;
using Catch::Matchers::Contains;

namespace {

outcome of(std::vector<double> step_ms, double idle, double blocked, std::uint64_t held = 0) {
  outcome o;
  o.step_ms = std::move(step_ms);
  o.idle = idle;
  o.blocked = blocked;
  o.launch_gap_ms = 7;
  o.slots_peak = 4;
  o.activation_bytes_peak = held / 2;
  o.held_bytes_peak = held;
  return o;
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

/// The page without its script.
std::string plain(const std::string& html) {
  const auto from = html.find("<script>");
  return html.substr(0, from) + html.substr(html.find("</script>", from));
}

const std::string two_runs =
    "name = \"two\"\nseeds = [1, 2]\ntrain.steps = 2\nablation = [\"slow\", \"quick\"]\n"
    "[[workload]]\nname = \"w\"\ncost.preset = \"gpt3-large\"\npaper.in_order_s = 3\n"
    "paper.bfw = 1.5\n"
    "[[run]]\nname = \"slow\"\ndispatch.mode = \"in-order\"\ndispatch.messages = "
    "\"blocking\"\ndispatch.policy = \"one_f_one_b\"\n"
    "[[run]]\nname = \"quick\"\npaper = \"bfw\"\n";

const std::vector<outcome> outcomes{
    of({300, 320}, 0.6, 0.25, 8 * gib), of({280, 300}, 0.6, 0.25, 10 * gib),
    of({100, 160}, 0.4, 0, 20 * gib), of({140, 200}, 0.4, 0, 30 * gib)};

std::string page_of(const std::string& text, const std::vector<outcome>& all) {
  return report_page(good(text), {{engine_kind::simulator, all}}, "a machine");
}

}  // namespace

TEST_CASE("the page of an experiment loads nothing and shows every figure without its script") {
  const auto html = page_of(two_runs, outcomes);
  for (const std::string fetching : {"http://", "https://", "src=", "@import", "fetch(", "url("})
    CHECK(html.find(fetching) == std::string::npos);
  const auto page = plain(html);
  CHECK_THAT(page, Contains("<title>two</title>") && Contains("Seeds: 1, 2. Steps of a cell: 2.") &&
                       Contains("Engine: simulator.") && Contains("ran on a machine.") &&
                       Contains("165.2 TFLOP/s, 24 GiB"));
  // Speed-up, its spread over steps, the paper's figure.
  CHECK_THAT(page, Contains("quick: 2.00x, 1.50 to 3.00 over all steps; 150.0 ms a step; "
                            "paper 1.50x"));
  CHECK_THAT(page, Contains("<td>300.0</td><td>280.0</td><td>320.0</td>"));
  CHECK_THAT(page, Contains("<td class=\"better\">2.00x</td><td>1.50</td>"));
  // Of the device's time: computing, blocked, other.
  CHECK_THAT(page, Contains("<td>40.0 %</td><td>25.0 %</td><td>35.0 %</td>"));
  CHECK_THAT(page, Contains("<td>15.0</td><td class=\"above\">30.0!</td>") &&
                       Contains("<td>10.0</td></tr>"));
  // The paper's table and the gain of each ingredient.
  CHECK_THAT(page, Contains("3.00 /</span> 0.30") && Contains("1.50 /</span> 2.00") &&
                       Contains("<td>1 of 1</td>"));
  CHECK_THAT(page, Contains(">+100.0 %</text>") && Contains("2.000x over the previous one"));
}

TEST_CASE("names are escaped, and long names are truncated in charts") {
  const std::string long_name(60, 'x');
  auto text = "seeds = [1]\n[[workload]]\nname = \"<b>&\"\n[[run]]\nname = \"" + long_name + "\"\n";
  const auto html = page_of(text, {of({1}, 0, 0)});
  CHECK(html.find("<b>&") == std::string::npos);
  CHECK_THAT(html, Contains("<figcaption>&lt;b&gt;&amp;</figcaption>"));
  CHECK_THAT(html, Contains("<td>" + long_name + "</td>") &&
                       Contains(">" + std::string(28, 'x') + "\u2026</text>"));
}

TEST_CASE("the page leaves out what was not requested") {
  const auto html =
      page_of("seeds = [1]\n[[workload]]\nname = \"w\"\n[[run]]\nname = \"r\"\n", {of({1}, 0, 0)});
  CHECK_THAT(html, !Contains("Comparison with the paper") && !Contains("ingredient") &&
                       !Contains("held GiB</th>") && !Contains("<nav>") &&
                       Contains("task times from the experiment file"));
}

TEST_CASE("one page shows the outcomes of two engines") {
  auto later = outcomes;
  for (auto& o : later)
    for (auto& ms : o.step_ms) ms *= 1.02;
  const auto html = report_page(
      good(two_runs), {{engine_kind::simulator, outcomes}, {engine_kind::wall_clock, later}}, "");
  CHECK_THAT(html, Contains("Engine: simulator, wall clock (time scale 1).") &&
                       Contains("weather none, simulator</h2>") &&
                       Contains("weather none, wall clock</h2>"));
  CHECK_THAT(html, Contains("<td>all cells</td><td>+2.00 %</td>") && Contains("<td>0 of 4</td>"));
  CHECK(count(html, "<th>launch gap ms</th>") == 1);
  const std::regex link{"href=\"#([a-z0-9]+)\""};
  for (std::sregex_iterator at{html.begin(), html.end(), link}, end; at != end; ++at)
    CHECK_THAT(html, Contains("id=\"" + (*at)[1].str() + "\""));
}

TEST_CASE("a page with too many workloads shows the first ones and says so") {
  std::string text = "seeds = [1]\n[[run]]\nname = \"a\"\n[[run]]\nname = \"b\"\n";
  for (int w = 0; w < 5; ++w) text += "[[workload]]\nname = \"w" + std::to_string(w) + "\"\n";
  const std::vector<outcome> all(10, of({1}, 0, 0));
  CHECK(count(report_page(good(text), {{engine_kind::simulator, all}}, ""), "<figure>") == 5);
  const auto bounded = report_page(good(text), {{engine_kind::simulator, all}}, "", 7);
  CHECK(count(bounded, "<figure>") == 3);
  CHECK_THAT(bounded, Contains("the first 3 of 5 workloads"));
  CHECK(count(report_page(good(text), {{engine_kind::simulator, all}}, "", 1), "<figure>") == 1);
}

TEST_CASE("whatever the times, everything is drawn within its panel") {
  for (const double ms : {1e-3, 1.0, 999.0, 1e6}) {
    const auto html = page_of(
        two_runs, {of({ms, 1}, 0, 0), of({1, 1}, 0, 0), of({1, 1}, 0, 0), of({1, ms}, 0, 0)});
    const std::regex place{R"( (?:x|x1|x2|cx)="(-?[0-9.]+|-?nan|-?inf)\")"};
    for (std::sregex_iterator at{html.begin(), html.end(), place}, end; at != end; ++at) {
      const auto x = std::stod((*at)[1]);
      CHECK(x >= 0);
      CHECK(x <= 480);
    }
    CHECK(count(html, "class=\"soft tick\"") <= 2 * 9);
  }
}

}  // namespace rrfp::experiment

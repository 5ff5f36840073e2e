// The page is self-contained, escapes titles, and limits the number of drawn tasks.
#include <catch2/catch.hpp>

#include <cmath>
#include <random>

#include <nlohmann/json.hpp>

#include <rrfp/report/page.hpp>

#include "hand_made.hpp"

namespace rrfp::report::testing {
namespace {

using Catch::Matchers::Contains;

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

/// What the script of the page reads.
nlohmann::json data_in(const std::string& html) {
  const std::string mark = "id=\"data\">";
  const auto from = html.find(mark) + mark.size();
  return nlohmann::json::parse(html.substr(from, html.find("</script>", from) - from), nullptr,
                               false);
}

}  // namespace

TEST_CASE("the page loads nothing from a network") {
  const auto file = two_stages().read();
  const auto html = html_of({"a report", {"from a test"}, {all_steps(file.runs[0])}});
  CHECK_THAT(html, Contains("<title>a report</title>") && Contains("from a test") &&
                       Contains("default-src 'none'"));
  for (const std::string fetching : {"http://", "https://", "src=", "@import", "fetch("})
    CHECK(html.find(fetching) == std::string::npos);
  CHECK(count(html, "url(") == count(html, "url(#hatch)"));
}

TEST_CASE("titles are escaped in HTML and in the data") {
  hand_made t;
  t.run("</script><b>&amp; 'x'", 1).task(0, "F0", 0, 0, 5);
  const auto file = t.read();
  const auto html = html_of({"<i>&</i>", {"<u>"}, {all_steps(file.runs[0])}});
  CHECK(count(html, "</script>") == 2);
  for (const std::string tag : {"<b>&", "<i>&", "<u>"}) CHECK(html.find(tag) == std::string::npos);
  CHECK_THAT(html, Contains("&lt;/script&gt;&lt;b&gt;&amp;amp; &#39;x&#39;") &&
                       Contains("\\u003c/script>"));
}

TEST_CASE("the data of a page is JSON, whatever the delays: a task may be shorter than expected") {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random{seed};
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    hand_made t;
    t.run("run \\\"" + std::to_string(seed) + "\\\"\\\\", 2);
    std::vector<double> delays;
    for (int stage = 0; stage < 2; ++stage)
      for (int n = 0, now = 0; n < 20; ++n) {
        const int begin = now + below(9), tenths = below(4000) - 2000;
        now = begin + 400 + below(30);
        delays.push_back(tenths / 10.0);
        t.task(stage, "F" + std::to_string(n), begin, begin, now, {},
               fmt::format(
                   "{}.{}",
                   tenths < 0 ? "-" + std::to_string(-tenths / 10) : std::to_string(tenths / 10),
                   std::abs(tenths % 10)));
      }
    const auto file = t.read();
    const auto data = data_in(html_of({"x", {}, {all_steps(file.runs[0])}}));
    REQUIRE(data.is_object());
    std::vector<double> read;
    for (const auto& lane : data["runs"][0]["lanes"])
      for (const auto& task : lane["tasks"]) read.push_back(task[6]);
    REQUIRE(read.size() == delays.size());
    for (std::size_t i = 0; i < read.size(); ++i) REQUIRE(std::abs(read[i] - delays[i]) < 0.01);
  }
}

TEST_CASE("runs are compared with the first by ratios") {
  hand_made t;
  t.run("slow", 1).task(0, "F0", 0, 0, 4000);
  t.run("quick", 1).task(0, "F0", 0, 0, 1000);
  const auto file = t.read();
  const auto html = html_of({"x", {}, {all_steps(file.runs[0]), all_steps(file.runs[1])}});
  CHECK_THAT(html, Contains("<td>4.00</td><td>1.00</td><td class=\"better\">0.25x</td>"));
  CHECK_THAT(html, Contains("<dt>speed-up</dt><dd>4.00x</dd>"));
  CHECK(count(html, "<svg class=\"lanes\"") == 2);
}

TEST_CASE("tasks beyond the maximum of a page are counted but not drawn, and the page says so") {
  hand_made t;
  t.run("long", 1);
  for (int n = 0; n < 50; ++n) t.task(0, "F" + std::to_string(n), 10 * n, 10 * n, 10 * n + 10);
  const auto file = t.read();
  const auto drawn = [](const std::string& html) {
    const auto from = html.find("\"tasks\":[");
    const auto tasks = html.substr(from, html.find("\"gaps\"") - from);
    return count(tasks, "[") - 1;
  };
  const auto whole = html_of({"x", {}, {all_steps(file.runs[0])}});
  CHECK(drawn(whole) == 50);
  CHECK(whole.find("the maximum number of tasks for a page") == std::string::npos);
  const auto bounded = html_of({"x", {}, {all_steps(file.runs[0])}}, 20);
  CHECK(drawn(bounded) == 20);
  CHECK_THAT(bounded, Contains("long: the timeline shows the first 0.200 ms of 0.500 ms"));
  CHECK_THAT(bounded, Contains("<td>50</td>"));
}

TEST_CASE("a page shows the chosen steps, or the last ones that fit, and says so") {
  hand_made trace;
  trace.run("long", 1);
  for (int step = 1; step <= 3; ++step)
    for (int n = 0; n < 2; ++n) {
      const int at = 20 * step + 10 * n;
      trace.task(0, "F" + std::to_string(n), at, at, at + 10, {.step = step});
    }
  const auto runs = trace.read().runs;
  const auto of = [&](std::optional<step_range> range, std::optional<step_id> step,
                      std::size_t tasks_max) {
    auto page = page_of("x", runs, {"read"}, range, step, tasks_max);
    REQUIRE(page.ok());
    return *std::move(page);
  };
  const auto whole = of({}, step_id{1}, 6);
  CHECK(whole.runs.front().steps.size() == 3);
  CHECK(whole.opens_on == step_id{1});
  CHECK(whole.notes ==
        std::vector<std::string>{"read", "long: 1 stages, 2 microbatches, 6 tasks; steps 1 to 3"});
  const auto last = of({}, step_id{1}, 5);
  CHECK(last.runs.front().steps.size() == 2);
  CHECK(last.opens_on != step_id{1});
  CHECK_THAT(last.notes.back(), Contains("steps 2 to 3 of the trace's 1 to 3, the last ones"));
  CHECK(of(step_range{step_id{1}, step_id{1}}, {}, 1).runs.front().steps.size() == 1);
  CHECK_FALSE(page_of("x", runs, {}, step_range{step_id{7}, step_id{9}}, {}).ok());
}

}  // namespace rrfp::report::testing

// The picture shows the times of the trace: bars add up and do not overlap, and it stays
// well-formed and small with any title.
#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>
#include <regex>

#include <rrfp/report/breakdown.hpp>
#include <rrfp/report/picture.hpp>

#include "hand_made.hpp"

namespace rrfp::report::testing {
namespace {

using Catch::Matchers::Contains;

constexpr std::string_view forward = "#1b4f8f", backward = "#f3b23e", weight = "#4fa58a",
                           fused = "#bf4a22", row = "#f1f3f6", input_wait = "#b4bcc8",
                           memory_wait = "#a05fc0", ranks_wait = "#5b6470";
constexpr std::array<std::string_view, task_kinds> kinds{forward, backward, weight, fused};

struct bar {
  double begin = 0;
  double length = 0;
};

/// The bars of one colour, in pixels, by the height of their row.
std::map<double, std::vector<bar>> bars_of(const std::string& svg, std::string_view colour) {
  std::map<double, std::vector<bar>> rows;
  const std::regex path{"<path stroke=\"" + std::string{colour} +
                        "\" d=\"((M[0-9. ]+h[0-9.]+)+)\""};
  const std::regex one{"M([0-9.]+) ([0-9.]+)h([0-9.]+)"};
  for (std::sregex_iterator p{svg.begin(), svg.end(), path}, end; p != end; ++p) {
    const auto d = (*p)[1].str();
    for (std::sregex_iterator b{d.begin(), d.end(), one}; b != end; ++b)
      rows[std::stod((*b)[2])].push_back({std::stod((*b)[1]), std::stod((*b)[3])});
  }
  return rows;
}

double sum_of(const std::vector<bar>& bars) {
  double sum = 0;
  for (const auto& b : bars) sum += b.length;
  return sum;
}

/// Tasks with and without gaps, some too short to be visible, and waits between them.
hand_made scattered(int stages, int microbatches) {
  std::mt19937 random{7};
  hand_made t;
  t.run("scattered", stages);
  for (int s = 0; s < stages; ++s) {
    int now = 0;
    for (int mb = 0; mb < microbatches; ++mb)
      for (const std::string kind : {"F", "B", "W"}) {
        const int gap = random() % 3 == 0 ? 0 : static_cast<int>(random() % 400);
        const auto what = kind + std::to_string(mb);
        if (gap > 0) t.wait(s, random() % 4 == 0 ? "memory" : "input", what, now, now + gap);
        now += gap;
        const int took = 1 + static_cast<int>(random() % (random() % 2 == 0 ? 3 : 900));
        t.task(s, what, now, now, now + took);
        now += took;
      }
  }
  return t;
}

}  // namespace

TEST_CASE("the bars of each row add up to the busy time of its rank, kind by kind") {
  const auto file = scattered(3, 24).read();
  const auto line = all_steps(file.runs[0]);
  const auto svg = svg_of("x", {line});
  const auto rows = bars_of(svg, row);
  REQUIRE(rows.size() == 3);
  std::size_t stage = 0;
  for (const auto& [y, whole] : rows) {
    REQUIRE(whole.size() == 1);
    const double nanoseconds_a_pixel = double(line.wall()) / whole[0].length;
    const auto busy = breakdown_of(line.lanes[stage], line.wall()).busy_by_kind;
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      const auto bars = bars_of(svg, kinds[k])[y];
      // Each end of a bar is off by half a tenth of a pixel at most.
      const auto off = 0.1 * double(line.lanes[stage].tasks.size());
      INFO("stage " << stage << ", kind " << k);
      CHECK(std::abs(sum_of(bars) - double(busy[k]) / nanoseconds_a_pixel) <= off);
    }
    ++stage;
  }
}

TEST_CASE("bars of a row do not overlap") {
  const auto file = scattered(4, 40).read();
  const auto svg = svg_of("x", {all_steps(file.runs[0])});
  std::map<double, std::vector<bar>> rows;
  for (const auto colour : {forward, backward, weight, fused, input_wait, memory_wait, ranks_wait})
    for (const auto& [y, bars] : bars_of(svg, colour))
      rows[y].insert(rows[y].end(), bars.begin(), bars.end());
  REQUIRE(rows.size() == 4);
  for (auto& [y, bars] : rows) {
    CHECK(bars.size() > 40);
    std::sort(bars.begin(), bars.end(),
              [](const auto& a, const auto& b) { return a.begin < b.begin; });
    int covered = 0;
    for (std::size_t i = 1; i < bars.size(); ++i)
      covered += bars[i - 1].begin + bars[i - 1].length > bars[i].begin + 0.01;
    CHECK(covered == 0);
  }
}

TEST_CASE("the runs of a picture share one time scale, and speed-ups are relative to the first") {
  hand_made t;
  t.run("slow", 1).task(0, "F0", 0, 0, 4'000'000);
  t.run("quick", 1).task(0, "F0", 0, 0, 1'000'000);
  const auto file = t.read();
  const auto svg = svg_of("x", {all_steps(file.runs[0]), all_steps(file.runs[1])});
  const auto bars = bars_of(svg, forward);
  REQUIRE(bars.size() == 2);
  CHECK(bars.begin()->second[0].length ==
        Approx(4 * bars.rbegin()->second[0].length).epsilon(0.001));
  CHECK(bars.begin()->second[0].begin == bars.rbegin()->second[0].begin);
  CHECK_THAT(svg, Contains(">slow<") && Contains("step 0: 4000.0 ms, bubble 0.0 %") &&
                      Contains(">quick<") && Contains("step 0: 1000.0 ms, speed-up 4.00x"));
  CHECK_THAT(svg, Contains(">forward<") && !Contains(">weight gradient<"));
}

TEST_CASE("waits, injected delay and tasks have distinct colours, which the legend explains") {
  hand_made t;
  t.run("x", 2)
      .task(0, "F0", 0, 0, 100, {.delay = 40})
      .wait(0, "memory", "F1", 100, 200)
      .task(0, "F1", 200, 200, 300)
      .task(1, "F0", 100, 100, 200)
      .wait(1, "input", "F1", 200, 300)
      .task(1, "F1", 300, 300, 400);
  const auto file = t.read();
  const auto svg = svg_of("x", {all_steps(file.runs[0])});
  const auto long_as = [&](std::string_view colour) {
    const auto rows = bars_of(svg, colour);
    REQUIRE(rows.size() == 1);
    return rows.begin()->second[0].length;
  };
  const auto wall = bars_of(svg, row).begin()->second[0].length;
  CHECK(long_as(memory_wait) == Approx(wall / 4).margin(0.11));
  CHECK(long_as(input_wait) == Approx(wall / 4).margin(0.11));
  CHECK(long_as("url\\(#delay\\)") == Approx(wall / 10).margin(0.11));
  CHECK_THAT(svg, Contains(">waiting for an input<") && Contains(">waiting for memory<") &&
                      Contains(">injected delay<") && !Contains(">waiting for other ranks<"));
}

TEST_CASE("a picture loads nothing, contains no script, and escapes its titles") {
  hand_made t;
  t.run("</text><script>&amp; 'x'\\u0007", 1).task(0, "F0", 0, 0, 5);
  const auto file = t.read();
  const auto svg = svg_of("<i>&</i>", {all_steps(file.runs[0])});
  for (const std::string active : {"<script", "href", "src=", "@import", "<style", "<i>", "\a"})
    CHECK(svg.find(active) == std::string::npos);
  CHECK(svg.find("url(") == svg.find("url(#delay)"));
  CHECK_THAT(svg, Contains("<title>&lt;i&gt;&amp;&lt;/i&gt;</title>") &&
                      Contains("&lt;/text&gt;&lt;script&gt;&amp;amp; &#39;x&#39;"));
  CHECK(svg.find("http") == svg.find("http://www.w3.org/2000/svg"));
}

TEST_CASE("a long title is truncated between two characters") {
  hand_made t;
  std::string title;
  for (int n = 0; n < 100; ++n) title += "\u00e9";
  t.run(title, 1).task(0, "F0", 0, 0, 5);
  const auto svg = svg_of("x", {all_steps(t.read().runs[0])});
  CHECK(svg.find("font-weight=\"600\">" + title.substr(0, 2 * 72) + "\u2026</text>") !=
        std::string::npos);
}

TEST_CASE("a picture of sixteen stages with 64 microbatches stays below 200 KiB") {
  const auto file = scattered(16, 64).read();
  CHECK(svg_of("x", {all_steps(file.runs[0])}).size() < 200 * 1024);
}

TEST_CASE("the typical step is close to the median of every run and complete") {
  hand_made t;
  const auto step = [&](int number, int begin, int took, const std::string& back = "BW0") {
    t.task(0, "F0", begin, begin, begin + took / 2, {.step = number});
    t.task(0, back, begin + took / 2, begin + took / 2, begin + took, {.step = number});
  };
  t.run("a", 1);
  step(0, 0, 500);
  step(1, 1000, 100);
  step(2, 2000, 300);
  step(3, 3000, 200);
  step(4, 4000, 10, "B0");  // its W is missing
  t.run("b", 1);
  step(1, 1000, 210);
  step(2, 2000, 100);
  step(3, 3000, 200);
  step(4, 4000, 10);
  const auto runs = t.read().runs;
  const auto last = step_id{~std::uint64_t{0}};
  // Step 0 is not in b; the sums of 1, 2 and 3 have another median.
  CHECK(typical_step(runs, step_id{0}, last) == step_id{3});
  CHECK(typical_step({runs[0]}, step_id{0}, last) == step_id{3});
  CHECK(typical_step({runs[1]}, step_id{0}, step_id{3}) == step_id{3});
  CHECK(typical_step(runs, step_id{1}, step_id{1}) == step_id{1});
  CHECK(typical_step(runs, step_id{4}, last) == step_id{4});
  CHECK(typical_step(runs, step_id{0}, step_id{0}) == std::nullopt);
}

}  // namespace rrfp::report::testing

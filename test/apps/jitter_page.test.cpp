// The page of an experiment in a browser: an empty console, a screenshot that is not blank, and
// runs that can be highlighted.
#include "browser.hpp"

namespace {

using namespace rrfp::test;

/// The page of the paper's first table, once for all tests.
const std::string& report() {
  static const scratch_folder folder;
  static const auto page = folder / "out/report.html";
  if (std::filesystem::exists(page)) return page;
  const auto ran = run_program({RRFP_JITTER, RRFP_SOURCE "/bench/paper/table1.toml", "--out",
                                folder / "out", "--engine", "simulator"});
  INFO(ran.err);
  REQUIRE(ran.code == 0);
  return page;
}

}  // namespace

TEST_CASE(
    "the page of an experiment opens with an empty console, and its screenshot is not blank") {
  require_good_picture(report(), "experiment.png");
}

TEST_CASE("the page of an experiment fits a laptop's window and a phone's") {
  require_fits_windows(report());
}

TEST_CASE("no run's name overlaps its dots, and no two numbers overlap") {
  const auto output = probe(report(), R"js(
const svgs = [...document.querySelectorAll('.panels svg')];
let bad = 0;
for (const svg of svgs)
  for (const row of svg.querySelectorAll('.run')) {
    const boxes = [...row.querySelectorAll('text')].map(t => t.getBoundingClientRect());
    const marks = [...row.querySelectorAll('circle, .step')].map(m => m.getBoundingClientRect());
    boxes.forEach((a, i) => {
      for (const b of [...boxes.slice(i + 1), ...marks])
        if (a.width && b.width && a.left < b.right && b.left < a.right) ++bad;
    });
  }
document.getElementById('probe').textContent = svgs.length + ' panels, ' + bad + ' overlaps';
)js");
  CHECK(output == "24 panels, 0 overlaps");  // two charts for each of 12 workloads
}

TEST_CASE("a click highlights a run everywhere, and another click ends that") {
  const auto output = probe(report(), R"js(
const say = text => { document.getElementById('probe').textContent += text + '\n'; };
const state = () => document.body.classList.contains('picked') + ' ' +
    new Set([...document.querySelectorAll('.run.on')].map(e => e.getAttribute('class').match(/r\d+/)[0])).size;
const tools = document.getElementById('tools');
say(tools.hidden + ' ' + tools.querySelectorAll('button').length);
tools.querySelectorAll('button')[4].click();
say(state());
document.querySelector('tr.run.r2 td').click();
say(state());
document.querySelector('svg .run.r2 .ground').dispatchEvent(new MouseEvent('click', {bubbles: true}));
say(state());
)js");
  CHECK(output == "false 8\ntrue 1\ntrue 1\nfalse 0\n");
}

// The page in a browser: an empty console, a screenshot that is not blank, and working hovering,
// zooming and panning. Without Chromium the program ends with code 77: skipped.
#include <catch2/catch.hpp>

#include "browser.hpp"

namespace {

using namespace rrfp::test;
using Catch::Matchers::Contains;

/// A page and a picture of the quickstart, once for all tests.
struct report_files {
  std::string page;
  std::string picture;
};

const report_files& report() {
  static const scratch_folder folder;
  static const report_files files{folder / "report.html", folder / "report.svg"};
  if (std::filesystem::exists(files.page)) return files;
  const auto trace = folder / "trace.json";
  const auto ran = run_program({RRFP_NODE, "run", RRFP_SOURCE "/apps/jobs/quickstart.toml", "--set",
                                "train.steps=3", "--trace", trace});
  INFO(ran.out << ran.err);
  REQUIRE(ran.code == 0);
  const auto made = run_program({RRFP_REPORT, trace, "--out", files.page, "--svg", files.picture});
  INFO(made.err);
  REQUIRE(made.code == 0);
  return files;
}

std::string probed(const std::string& script) { return probe(report().page, script); }

/// Helpers of the probes.
const std::string gestures = R"js(
Element.prototype.setPointerCapture = () => {};
const say = text => { document.getElementById('probe').textContent += text + '\n'; };
const svg = document.querySelector('svg.lanes');
const box = svg.getBoundingClientRect();
const at = (type, x, y, more = {}) => svg.dispatchEvent(new (type === 'wheel' ? WheelEvent : PointerEvent)(
    type, {clientX: box.left + x, clientY: box.top + y, bubbles: true, cancelable: true, ...more}));
const tip = () => document.getElementById('tip').textContent;
const data = JSON.parse(document.getElementById('data').textContent);
const range = () => document.getElementById('range').textContent;
const seconds = () => {
  const [, number, unit] = range().match(/\((\S+) (\S+)\)/);
  return number * {s: 1, ms: 1e-3, 'µs': 1e-6}[unit];
};
const showAll = () => document.querySelector('[data-do=all]').click();
const soon = () => new Promise(done => setTimeout(done, 50));
// The page draws when it finds time: waits for what is drawn, at most two seconds.
const until = async drawn => { for (let i = 0; i < 40 && !drawn(); ++i) await soon(); };
)js";

}  // namespace

TEST_CASE("the page opens with an empty console, and its screenshot is not blank") {
  require_good_picture(report().page, "report.png");
}

TEST_CASE("the picture of a step opens in a browser and is not blank") {
  require_good_picture(report().picture, "step.png");
}

TEST_CASE("the page opens on one step, and all of them are one click away") {
  const auto output = probed(gestures + R"js(
(async () => {
  const step = document.getElementById('step');
  await until(() => step.value !== '' && range() !== '');
  say(step.value !== '' && step.selectedIndex > 0 ? 'one step' : 'all steps');
  const spans = data.runs.map(r => r.steps.find(s => s[0] === +step.value));
  const longest = Math.max(...spans.map(s => s[2] - s[1])) / 1e6;
  say(Math.abs(seconds() / longest - 1.02) < 0.01 ? 'it fills the axis' : range());
  showAll();
  const all = () => step.value === '' && Math.abs(seconds() / data.wall * 1e6 - 1) < 0.01;
  await until(all);
  say(all() ? 'all' : range());
})();
)js");
  CHECK(output == "one step\nit fills the axis\nall\n");
}

TEST_CASE("the page fits a laptop's window and a phone's") { require_fits_windows(report().page); }

TEST_CASE("an error on the console is detected") {
  const scratch_folder folder;
  const auto page = folder / "bad.html";
  std::ofstream{page} << "<!DOCTYPE html><script>absent();</script>";
  CHECK_THAT(console_of(open(page, {"--dump-dom"})), Contains("absent is not defined"));
}

TEST_CASE("hovering shows a task's reason, decision, delay and memory, and a gap's cause") {
  const auto output = probed(gestures + R"js(
showAll();
const scale = (box.width - 96 - 12) / data.wall;
const lane = data.runs[0].lanes[0];
const longest = lane.tasks.reduce((a, b) => a[5] >= b[5] ? a : b);
at('pointermove', 96 + (longest[4] + longest[5] / 2) * scale, 30);
say(tip());
const gap = lane.gaps.reduce((a, b) => a[2] >= b[2] ? a : b);
at('pointermove', 96 + (gap[1] + gap[2] / 2) * scale, 30);
say(tip());
)js");
  INFO(output);
  CHECK_THAT(output, Contains("stage 0 · step") && Contains("reason: ") && Contains("decided at") &&
                         Contains("injected delay") && Contains("slots, "));
  CHECK_THAT(output, Contains("No task could be launched: "));
}

TEST_CASE("the wheel zooms, dragging pans, a step can be chosen and all seen again") {
  const auto output = probed(gestures + R"js(
(async () => {
  showAll();
  await until(() => Math.abs(seconds() / data.wall * 1e6 - 1) < 0.01);
  const all = seconds();
  at('wheel', 600, 30, {deltaY: -500, ctrlKey: true});
  await until(() => seconds() < all / 2);
  say(seconds() < all / 2 ? 'zoomed in' : 'not zoomed: ' + range());
  const before = range();
  at('pointerdown', 600, 30);
  at('pointermove', 500, 30);
  at('pointerup', 500, 30);
  await until(() => range() !== before);
  say(range() !== before ? 'panned' : 'not panned: ' + range());
  showAll();
  await until(() => seconds() === all);
  say(seconds() === all ? 'all' : 'not all: ' + range());
  const step = document.getElementById('step');
  step.value = '1';
  step.dispatchEvent(new Event('change'));
  await until(() => seconds() < all * 0.8);
  say(seconds() < all * 0.8 ? 'step' : 'not a step: ' + range());
  const marks = document.querySelectorAll('path.path').length;
  document.getElementById('show-path').click();
  await until(() => !document.querySelector('path.path'));
  say(marks === 2 && !document.querySelector('path.path') ? 'path toggled' : 'path: ' + marks);
})();
)js");
  CHECK(output == "zoomed in\npanned\nall\nstep\npath toggled\n");
}

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

TEST_CASE("the memory of every stage is drawn, whatever the width of the page") {
  const auto output = probed(gestures + R"js(
(async () => {
  const stages = data.runs.reduce((count, run) => count + run.held.length, 0);
  const step = document.getElementById('step');
  await until(() => step.value !== '');
  step.selectedIndex = step.options.length - 1;  // it ends with the last change of the memory
  step.dispatchEvent(new Event('change'));
  for (let width = 500; width < 900; width += 10) {
    document.body.style.maxWidth = width + 'px';
    dispatchEvent(new Event('resize'));
    await soon();
    const drawn = document.querySelectorAll('path.slots').length;
    if (drawn !== stages) say(`${drawn} of ${stages} at ${width}`);
  }
  say('looked');
})();
)js");
  CHECK(output == "looked\n");
}

TEST_CASE("the timeline is drawn anew for paper, and for the window after that") {
  const auto output = probed(gestures + R"js(
const width = () => svg.getAttribute('viewBox').split(' ')[2];
const before = width();
dispatchEvent(new Event('beforeprint'));
say(width());
dispatchEvent(new Event('afterprint'));
say(width() === before && width() > 1000);
)js");
  CHECK(output == "703\ntrue\n");
}

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

TEST_CASE("the arrow keys and a tap show a task's reason, and Escape hides it") {
  const auto output = probed(gestures + R"js(
const key = key => svg.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true}));
const hidden = () => document.getElementById('tip').style.display === 'none';
const lane = n => data.runs[0].lanes[n].full;
showAll();
say(svg.tabIndex);
key('ArrowRight');
const first = tip();
say(first.includes('reason: ') && first.includes(lane(0)) ? 'first task' : first);
key('ArrowRight');
say(tip() !== first && tip().includes('reason: ') ? 'next task' : tip());
key('ArrowLeft');
say(tip() === first ? 'back' : tip());
key('ArrowDown');
say(tip().includes('reason: ') && tip().includes(lane(1)) ? 'next lane' : tip());
key('Escape');
say(hidden() ? 'hidden' : 'shown');
const scale = (box.width - 96 - 12) / data.wall;
const longest = data.runs[0].lanes[0].tasks.reduce((a, b) => a[5] >= b[5] ? a : b);
const x = 96 + (longest[4] + longest[5] / 2) * scale;
for (const type of ['pointerdown', 'pointerup', 'pointerleave']) at(type, x, 30, {pointerType: 'touch'});
say(!hidden() && tip().includes('reason: ') ? 'tapped' : 'not tapped');
)js");
  CHECK(output == "0\nfirst task\nnext task\nback\nnext lane\nhidden\ntapped\n");
}

TEST_CASE("a page with damaged data says so in place of the timelines") {
  const scratch_folder folder;
  const auto page = folder / "damaged.html";
  auto html = text_of(report().page);
  html.replace(html.find("\"runs\":["), 7, "\"runs\":-.-");
  std::ofstream{page} << html;
  const auto output = probe(page, R"js(
document.getElementById('probe').textContent = document.querySelector('p.note').textContent;
)js");
  CHECK_THAT(output, Contains("Timeline and memory cannot be drawn"));
}

TEST_CASE("a page of tasks that were shorter than expected draws its timelines") {
  const scratch_folder folder;
  const auto ran = run_program({RRFP_NODE, "run", RRFP_SOURCE "/apps/jobs/quickstart.toml", "--set",
                                "jitter.compute=lognormal", "--set", "train.steps=2", "--trace",
                                folder / "trace.json"});
  INFO(ran.out << ran.err);
  REQUIRE(ran.code == 0);
  REQUIRE(run_program({RRFP_REPORT, folder / "trace.json", "--out", folder / "page.html"}).code ==
          0);
  const auto output = probe(folder / "page.html", R"js(
const data = JSON.parse(document.getElementById('data').textContent);
const delays = data.runs.flatMap(r => r.lanes.flatMap(l => l.tasks.map(t => t[6])));
document.getElementById('probe').textContent =
    (delays.some(d => d < 0) ? 'shorter' : 'none shorter') + ', ' +
    [...document.querySelectorAll('svg.lanes')].every(s => s.innerHTML.includes('<path'));
)js");
  CHECK(output == "shorter, true");
}

TEST_CASE("text on tasks has a contrast of 4.5, and no two causes look alike to any eye") {
  const auto output = probed(R"js(
const root = getComputedStyle(document.documentElement);
const value = name => {
  const text = root.getPropertyValue('--' + name.replace(' ', '-')).trim();
  const full = text.length === 4 ? '#' + [...text.slice(1)].map(c => c + c).join('') : text;
  return [1, 3, 5].map(i => parseInt(full.slice(i, i + 2), 16) / 255)
      .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
};
const data = JSON.parse(document.getElementById('data').textContent);
const light = c => 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2];
const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
// Machado, Oliveira and Fernandes 2009: deuteranopia, protanopia.
const eyes = [[[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]];
const lab = (c, eye) => {
  const [r, g, b] = eye.map(row => Math.min(1, Math.max(0, row.reduce((s, m, i) => s + m * c[i], 0))));
  const f = t => t > 0.008856 ? Math.cbrt(t) : 7.787 * t + 16 / 116;
  const [x, y, z] = [(0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047, 0.2126 * r + 0.7152 * g + 0.0722 * b,
                     (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883].map(f);
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
};
const bad = [];
for (const kind of data.kinds)
  if (contrast(value(kind), value('on-' + kind)) < 4.5) bad.push(kind);
for (const eye of eyes)
  data.causes.forEach((a, i) => data.causes.slice(i + 1).forEach(b => {
    const x = lab(value(a), eye), y = lab(value(b), eye);
    if (Math.hypot(...x.map((v, k) => v - y[k])) < 12) bad.push(a + ' and ' + b);
  }));
document.getElementById('probe').textContent = bad.join(', ') || 'good';
)js");
  CHECK(output == "good");
}

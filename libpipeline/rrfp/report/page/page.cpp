#include <rrfp/report/page.hpp>

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include <rrfp/base/units.hpp>
#include <rrfp/io/html.hpp>

#include "parts.hpp"

namespace rrfp::report {

// The files, embedded.
extern const char* const page_css;
extern const char* const page_js;

namespace {

/// The time by which at most `tasks_max` tasks have begun.
nanoseconds shown_until(const timeline& t, std::size_t tasks_max) {
  std::vector<nanoseconds> begins;
  for (const auto& l : t.lanes)
    for (const auto* task : l.tasks) begins.push_back(task->begin);
  if (begins.size() <= tasks_max) return t.end();
  const auto last = begins.begin() + static_cast<std::ptrdiff_t>(tasks_max);
  std::nth_element(begins.begin(), last, begins.end());
  return *last;
}

examined_run examine(const timeline& t, std::size_t tasks_max) {
  examined_run run;
  run.line = &t;
  run.by_stage = breakdown_by_stage(t);
  for (const auto& b : run.by_stage) run.total += b;
  run.figures = figures_of(t);
  for (std::uint32_t r = 0; r < t.run->replicas; ++r)
    for (std::uint32_t s = 0; s < t.run->shape.stages; ++s)
      run.held_by_stage.push_back(held_over_time(t, replica_id{r}, stage_id{s}));
  run.path = find_critical_path(t);
  run.shown_until = shown_until(t, tasks_max);
  return run;
}

std::string notes_of(const page_content& content, const std::vector<examined_run>& runs) {
  std::string out;
  for (const auto& note : content.notes)
    out += fmt::format("<p class=\"soft\">{}</p>\n", html::escaped(note));
  for (const auto& r : runs)
    if (r.shown_until < r.line->end())
      out += fmt::format(
          "<p class=\"note\">{}: the timeline shows the first {:.3f} ms of {:.3f} ms, the maximum "
          "number of tasks for a page; the tables count all tasks. Choose fewer steps to see "
          "later ones.</p>\n",
          html::escaped(r.line->run->title), milliseconds(r.shown_until - r.line->begin()),
          milliseconds(r.line->wall()));
  return out;
}

/// The step on which the page opens, if the drawn part of every run contains it.
std::optional<step_id> opens_on(const page_content& content,
                                const std::vector<examined_run>& runs) {
  const auto shows = [&](const examined_run& r) {
    return std::ranges::any_of(r.line->steps, [&](const step_span& s) {
      return s.step == content.opens_on && s.begin < r.shown_until;
    });
  };
  return std::ranges::all_of(runs, shows) ? content.opens_on : std::nullopt;
}

std::string tools_of(const std::vector<examined_run>& runs, std::optional<step_id> selected) {
  std::set<step_id> steps;
  for (const auto& r : runs)
    for (const auto& s : r.line->steps) steps.insert(s.step);
  std::string options;
  for (const auto s : steps)
    options += fmt::format("<option value=\"{0}\"{1}>step {0}</option>", s.value(),
                           s == selected ? " selected" : "");
  return fmt::format(
      R"(<div id="tools">
<button data-do="in" title="w or +">zoom in</button>
<button data-do="out" title="s or -">zoom out</button>
<button data-do="earlier" title="a">&#9664;</button>
<button data-do="later" title="d">&#9654;</button>
<button data-do="all" title="0">all steps</button>
<select id="step" title="Align all runs at the start of this step"><option value="">all steps</option>{}</select>
<label><input type="checkbox" id="show-path" checked> critical path</label>
<span id="range" class="soft num"></span>
<span class="soft">drag: move &middot; Ctrl + wheel or double click: zoom &middot; keys w a s d 0 &middot;
a task's reason: point at it, tap it, or Tab to the timeline and use the arrow keys</span>
{}</div>
)",
      options, legend());
}

std::string drawings_of(const std::vector<examined_run>& runs, bool memory) {
  std::string out;
  for (std::size_t i = 0; i < runs.size(); ++i)
    out += fmt::format(
        "<h3>{}</h3>\n<svg class=\"lanes{}\" data-run=\"{}\" role=\"img\" "
        "aria-label=\"{} of {}\"></svg>\n",
        html::escaped(runs[i].line->run->title), memory ? " memory" : "", i,
        memory ? "memory" : "timeline", html::escaped(runs[i].line->run->title));
  return out;
}

}  // namespace

std::string html_of(const page_content& content, std::size_t tasks_max) {
  std::vector<examined_run> runs;
  for (const auto& t : content.runs)
    runs.push_back(examine(t, std::max<std::size_t>(tasks_max / content.runs.size(), 1)));
  html::document page;
  page.title = content.title;
  page.style = page_css;
  page.script = page_js;
  page.body = fmt::format(
      R"body(<svg style="position:absolute;width:0;height:0"><defs><pattern id="hatch" width="5" height="5"
patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="1.6" height="5" fill="#fff" fill-opacity=".5"/></pattern></defs></svg>
{}{}
<h2>Timeline</h2>
{}{}
<h2>Memory held</h2>
<p class="soft">Filled: slots, the microbatches that the stage holds. Line: activation bytes of its
fullest rank. Both are recorded at the end of each task and drawn on one scale for all stages and runs. Left:
the peak of each.</p>
{}
{}<h2>Comparison</h2>
{}
<h2>Load and idle time of each stage</h2>
{}
<h2>Critical path</h2>
{}
<h2>Terms</h2>
{}
<div id="tip" role="status"></div>
<script type="application/json" id="data">{}</script>
)body",
      notes_of(content, runs), cards_of(runs), tools_of(runs, opens_on(content, runs)),
      drawings_of(runs, false), drawings_of(runs, true), incidents_of(runs), comparison_of(runs),
      stages_of(runs), paths_of(runs), glossary(), data_of(runs));
  return html::text_of(page);
}

}  // namespace rrfp::report

/// What happened to the runs: losses of nodes, and stragglers.
#include <fmt/format.h>

#include <rrfp/base/units.hpp>
#include <rrfp/io/html.hpp>
#include <rrfp/report/late.hpp>

#include "parts.hpp"

namespace rrfp::report {

namespace {

using html::table;

std::string recoveries_table(const traced_run& run) {
  if (run.recoveries.empty()) return {};
  table t{run.title, {"lost", "went on after step", "from", "steps repeated", "held, s"}};
  for (const auto& r : run.recoveries) {
    t.row(r.lost);
    t.cell(std::to_string(r.step));
    t.cell(r.from_copies ? "copies" : "a checkpoint or the start");
    t.cell(std::to_string(r.repeated_steps));
    t.cell(fmt::format("{:.1f}", seconds(r.held)));
  }
  return t.finish();
}

std::string stragglers_table(const examined_run& run) {
  const auto found = find_late(*run.line);
  if (found.empty()) return {};
  table t{run.line->run->title, {"stragglers", "late", "share of all waiting", "in steps"}};
  for (const auto& f : found) {
    auto name = stage_name(*run.line->run, f.what.replica, f.what.stage);
    if (f.what.ranks.size() < run.line->run->ranks)
      for (const auto rank : f.what.ranks)
        name += fmt::format("{}{}", rank == f.what.ranks.front() ? " rank " : ", ", rank.value());
    t.row(name);
    t.cell(fmt::format("{:.0f} % of the time", 100 * f.what.late));
    t.cell(fmt::format("{:.0f} %", 100 * f.what.waiting));
    t.cell(fmt::format("{} to {}", f.first.value(), f.last.value()));
  }
  return t.finish();
}

}  // namespace

std::string incidents_of(const std::vector<examined_run>& runs) {
  std::string losses, late;
  for (const auto& r : runs) {
    losses += recoveries_table(*r.line->run);
    late += stragglers_table(r);
  }
  std::string out;
  if (!losses.empty())
    out +=
        "<h2>Losses of nodes</h2>\n<p class=\"soft\">The job went on after each. Held: from the "
        "loss until all nodes had joined again. The drawing has the steps after the last one."
        "</p>\n" +
        losses;
  if (!late.empty())
    out += fmt::format(
        "<h2>Stragglers</h2>\n<p class=\"soft\">Ranks that work longer than the median rank, by "
        "{:.0f} "
        "% of the time of {} steps or more: the others wait for them.</p>\n{}",
        100 * straggler_watch::late_min, straggler_watch::window, late);
  return out;
}

}  // namespace rrfp::report

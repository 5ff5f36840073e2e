/// The numbers of all runs side by side: each is a function of a run.
#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include <rrfp/base/units.hpp>
#include <rrfp/io/html.hpp>

#include "parts.hpp"

namespace rrfp::report {

namespace {

using html::table;

/// One number of a run in the comparison.
struct metric {
  std::string name;
  std::function<double(const examined_run&)> value_of;
  int decimals = 2;
  /// Whether less is better.
  bool judged = true;
};

/// Mean over the ranks, so that the parts add up to the wall time.
double mean_ms(const examined_run& r, nanoseconds sum) { return milliseconds(sum) / r.total.ranks; }

std::vector<metric> duration_metrics() {
  return {{"step (median)", [](const auto& r) { return r.figures.step_ms; }},
          {"steps", [](const auto& r) { return double(r.line->steps.size()); }, 0, false},
          {"wall time, with all between the steps",
           [](const auto& r) { return milliseconds(r.line->wall()); }},
          {"bubble, %", [](const auto& r) { return r.figures.bubble * 100; }, 1}};
}

std::vector<metric> load_metrics() {
  std::vector<metric> all{
      {"busy", [](const auto& r) { return mean_ms(r, r.total.busy()); }, 2, false}};
  for (std::size_t k = 0; k < task_kinds; ++k)
    all.push_back({"  " + std::string(name(static_cast<task_kind>(k))),
                   [k](const auto& r) { return mean_ms(r, r.total.busy_by_kind[k]); }, 2, false});
  all.push_back({"  of which injected delay",
                 [](const auto& r) { return mean_ms(r, r.total.delay); }, 2, false});
  return all;
}

std::vector<metric> idle_metrics() {
  std::vector<metric> all{{"idle", [](const auto& r) { return mean_ms(r, r.total.idle()); }}};
  for (std::size_t s = 0; s < idle_causes; ++s)
    all.push_back({"  " + std::string(name(static_cast<idle_cause>(s))),
                   [s](const auto& r) { return mean_ms(r, r.total.idle_by_cause[s]); }});
  all.push_back({"  of which another task was ready",
                 [](const auto& r) { return mean_ms(r, r.total.other_ready); }});
  return all;
}

std::vector<metric> memory_metrics(const std::vector<examined_run>& runs) {
  std::vector<metric> all{
      {"peak slots on a stage", [](const auto& r) { return double(r.figures.slots_peak); }, 0}};
  const auto says_bytes = [](const auto& r) { return r.figures.bytes_peak > 0; };
  if (std::any_of(runs.begin(), runs.end(), says_bytes))
    all.push_back({"peak activation MiB of a rank",
                   [](const auto& r) { return mebibytes(r.figures.bytes_peak); }});
  return all;
}

std::vector<metric> path_metrics() {
  const auto of_stages = [](auto part) {
    return [part](const examined_run& r) {
      nanoseconds sum = 0;
      for (const auto& s : r.path.by_stage) sum += std::invoke(part, s);
      return milliseconds(sum);
    };
  };
  return {{"compute", of_stages(&path_share::compute)},
          {"  of which injected delay", of_stages(&path_share::delay)},
          {"transfer", [](const auto& r) { return milliseconds(r.path.transfer); }},
          {"launch gaps", [](const auto& r) { return milliseconds(r.path.launch_gap); }},
          {"start of steps", [](const auto& r) { return milliseconds(r.path.step_begin); }},
          {"between steps", [](const auto& r) { return milliseconds(r.path.between_steps); }}};
}

void add_ratio(table& t, double value, double first, bool judged) {
  if (first == 0) return t.cell(value == 0 ? "=" : "new");
  const auto ratio = value / first;
  const auto verdict = !judged ? "" : ratio < 0.995 ? "better" : ratio > 1.005 ? "worse" : "";
  t.cell(fmt::format("{:.2f}x", ratio), verdict);
}

std::string metric_table(const std::vector<examined_run>& runs, std::string_view title,
                         const std::vector<metric>& metrics) {
  table t{title, {""}};
  for (const auto& r : runs) {
    t.head(r.line->run->title);
    if (&r != &runs.front()) t.head("ratio");
  }
  for (const auto& m : metrics) {
    const auto first = m.value_of(runs.front());
    t.row(m.name.starts_with("  ") ? "\u2003" + m.name.substr(2) : m.name);
    for (const auto& r : runs) {
      const auto value = m.value_of(r);
      t.cell(fmt::format("{:.{}f}", value, m.decimals));
      if (&r != &runs.front()) add_ratio(t, value, first, m.judged);
    }
  }
  return t.finish();
}

}  // namespace

std::string comparison_of(const std::vector<examined_run>& runs) {
  std::string out;
  if (runs.size() > 1)
    out = fmt::format("<p class=\"soft\">Ratios are relative to {}.</p>\n",
                      html::escaped(runs.front().line->run->title));
  return out + "<div class=\"pair\">\n<div>\n" +
         metric_table(runs, "Duration, ms", duration_metrics()) +
         metric_table(runs, "Memory", memory_metrics(runs)) + "</div>\n<div>\n" +
         metric_table(runs, "Load, ms per rank", load_metrics()) + "</div>\n<div>\n" +
         metric_table(runs, "Idle, ms per rank", idle_metrics()) + "</div>\n<div>\n" +
         metric_table(runs, "Critical path, ms", path_metrics()) + "</div>\n</div>\n";
}

}  // namespace rrfp::report

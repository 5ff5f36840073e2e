#include "tables.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include <rrfp/base/check.hpp>
#include <rrfp/base/statistics.hpp>
#include <rrfp/base/units.hpp>

#include "../common/table_text.hpp"

namespace rrfp::experiment {

namespace {

using apps::table_rows;
using apps::table_text;

/// The sample standard deviation; 0 of one value.
double deviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const auto count = static_cast<double>(values.size());
  const auto mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const auto v : values) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / (count - 1));
}

std::string ms_text(double ms) { return fmt::format("{:.1f}", ms); }
std::string percent_text(double share, int digits = 1) {
  return fmt::format("{:.{}f} %", 100 * share, digits);
}

/// A table for each workload and weather, below its title: `add_row(rows, workload, weather, i)` is
/// called `count` times. A table without rows is left out.
template <class AddRow>
std::string tables_of(const experiment& e, std::size_t count, const std::vector<std::string>& heads,
                      AddRow add_row, std::string_view before_title = "") {
  std::string text;
  for (std::size_t w = 0; w < e.workloads.size(); ++w)
    for (std::size_t k = 0; k < e.weathers.size(); ++k) {
      table_rows rows{heads};
      for (std::size_t i = 0; i < count; ++i) add_row(rows, w, k, i);
      if (rows.size() > 1)
        text += fmt::format("\n{}{} - weather {}\n{}", before_title, e.workloads[w].name,
                            e.weathers[k].name, table_text(rows));
    }
  return text;
}

}  // namespace

const outcome* cells_of(const experiment& e, const std::vector<outcome>& outcomes,
                        std::size_t workload, std::size_t weather, std::size_t run) {
  RRFP_CHECK(outcomes.size() == e.cells(), "there must be one outcome per cell");
  return outcomes.data() + e.first_cell(workload, weather, run);
}

std::string figure_text(double figure) { return figure > 0 ? fmt::format("{:.2f}", figure) : ""; }

std::string memory_text(const workload_entry& w, std::uint64_t held) {
  if (study::options_of(w.job).cost.preset.empty()) return "";
  const auto size = static_cast<double>(held) / gibibyte;
  return fmt::format("{:.1f}{}", size,
                     size > study::options_of(w.job).machine.memory_gib ? "!" : "");
}

void paper_score::add(double paper, double ours) {
  if (paper <= 0) return;
  paper_log += std::log(paper);
  ours_log += std::log(ours);
  reached += ours >= paper ? 1 : 0;
  ++rows;
}

std::string paper_score::mean(double logs) const {
  return fmt::format("{:.2f}", std::exp(logs / rows));
}

summary summary_of(const experiment& e, const std::vector<outcome>& outcomes, std::size_t workload,
                   std::size_t weather, std::size_t run) {
  const auto* const cells = cells_of(e, outcomes, workload, weather, run);
  const auto seeds = static_cast<double>(e.seeds.size());
  summary s;
  const auto* const baseline = cells_of(e, outcomes, workload, weather, e.run_index(e.baseline));
  double own_ms = 0, baseline_ms = 0;
  std::vector<double> step_ms, speed_ups;
  for (std::size_t i = 0; i < e.seeds.size(); ++i) {
    own_ms += step_ms.emplace_back(cells[i].mean_ms());
    baseline_ms += baseline[i].mean_ms();
    speed_ups.push_back(baseline[i].mean_ms() / step_ms.back());
    s.add(cells[i], seeds);
  }
  s.step_ms = own_ms / seeds;
  s.speed_up = baseline_ms / own_ms;
  s.step_ms_deviation = deviation(step_ms);
  s.speed_up_deviation = deviation(speed_ups);
  return s;
}

std::string results_table(const experiment& e, const std::vector<outcome>& outcomes) {
  const std::vector<std::string> heads{"run",     "step ms", "speed-up", "paper",   "idle",
                                       "blocked", "slots",   "act. GiB", "held GiB"};
  return tables_of(e, e.runs.size(), heads, [&](table_rows& rows, auto w, auto k, auto r) {
    const auto& of = e.workloads[w];
    const auto s = summary_of(e, outcomes, w, k, r);
    const auto activations =
        study::options_of(of.job).cost.preset.empty()
            ? std::string{}
            : fmt::format("{:.1f}", static_cast<double>(s.activation_bytes_peak) / gibibyte);
    rows.push_back({e.runs[r].name, ms_text(s.step_ms), fmt::format("{:.2f}x", s.speed_up),
                    figure_text(figure_of(of.paper, e.runs[r].column)), percent_text(s.idle),
                    percent_text(s.blocked), std::to_string(s.slots_peak), activations,
                    memory_text(of, s.held_bytes_peak)});
  });
}

std::string ablation_table(const experiment& e, const std::vector<outcome>& outcomes) {
  if (e.ablation.empty()) return "";
  const std::vector<std::string> heads{"run", "step ms", "gain", "total", "slots", "held GiB"};
  return "\nablation: gain of each run over the previous one\n" +
         tables_of(e, e.ablation.size(), heads, [&](table_rows& rows, auto w, auto k, auto i) {
           const auto at = [&](std::size_t entry) {
             return summary_of(e, outcomes, w, k, e.run_index(e.ablation[entry]));
           };
           const auto s = at(i);
           rows.push_back({e.ablation[i], ms_text(s.step_ms),
                           fmt::format("{:.3f}x", at(i == 0 ? 0 : i - 1).step_ms / s.step_ms),
                           fmt::format("{:.3f}x", at(0).step_ms / s.step_ms),
                           std::to_string(s.slots_peak),
                           memory_text(e.workloads[w], s.held_bytes_peak)});
         });
}

std::string weather_table(const experiment& e, const std::vector<outcome>& outcomes) {
  if (e.weathers.size() < 2) return "";
  std::string text = fmt::format("\nslow-down relative to weather {}\n", e.weathers[0].name);
  for (std::size_t w = 0; w < e.workloads.size(); ++w) {
    table_rows rows{{"run"}};
    for (std::size_t k = 1; k < e.weathers.size(); ++k) rows[0].push_back(e.weathers[k].name);
    for (std::size_t r = 0; r < e.runs.size(); ++r) {
      const auto first = summary_of(e, outcomes, w, 0, r).step_ms;
      rows.push_back({e.runs[r].name});
      for (std::size_t k = 1; k < e.weathers.size(); ++k)
        rows.back().push_back(
            percent_text(summary_of(e, outcomes, w, k, r).step_ms / first - 1, 2));
    }
    text += fmt::format("\n{}\n{}", e.workloads[w].name, table_text(rows));
  }
  return text;
}

std::string spread_table(const experiment& e, const std::vector<outcome>& outcomes) {
  if (e.seeds.size() * e.steps < spread_steps) return "";
  const std::vector<std::string> heads{"run",    "p5 ms",        "p50 ms",
                                       "p95 ms", "(p95-p5)/p50", "(p75-p25)/p50"};
  const auto add_row = [&](table_rows& rows, auto w, auto k, auto r) {
    std::vector<double> steps;
    const auto* const cells = cells_of(e, outcomes, w, k, r);
    for (std::size_t i = 0; i < e.seeds.size(); ++i)
      steps.insert(steps.end(), cells[i].step_ms.begin(), cells[i].step_ms.end());
    const auto at = [&](double share) { return quantile(steps, share); };
    rows.push_back({e.runs[r].name, ms_text(at(.05)), ms_text(at(.5)), ms_text(at(.95)),
                    fmt::format("{:.3f}", (at(.95) - at(.05)) / at(.5)),
                    fmt::format("{:.3f}", (at(.75) - at(.25)) / at(.5))});
  };
  return tables_of(e, e.runs.size(), heads, add_row,
                   fmt::format("spread of {} steps: ", e.seeds.size() * e.steps));
}

std::string breakdown_table(const experiment& e, const std::vector<outcome>& outcomes) {
  const std::vector<std::string> heads{"run", "step", "tasks", "waiting", "launch gap"};
  return "\nmean step per device, in ms; launch gap: on the stage with the most\n" +
         tables_of(e, e.runs.size(), heads, [&](table_rows& rows, auto w, auto k, auto r) {
           const auto s = summary_of(e, outcomes, w, k, r);
           const auto tasks = (1 - s.idle) * s.step_ms;
           rows.push_back({e.runs[r].name, ms_text(s.step_ms), ms_text(tasks),
                           ms_text(s.step_ms - tasks - s.launch_gap_ms),
                           fmt::format("{:.2f}", s.launch_gap_ms)});
         });
}

std::string ranks_table(const experiment& e, const std::vector<outcome>& outcomes) {
  const std::vector<std::string> heads{"run",      "step ms",   "for ranks", "gathering",
                                       "deferred", "deferrals", "share"};
  const auto text =
      tables_of(e, e.runs.size(), heads, [&](table_rows& rows, auto w, auto k, auto r) {
        const auto s = summary_of(e, outcomes, w, k, r);
        if (!s.has_rank_waits()) return;
        const auto ms = [&](double share, int digits) {
          return fmt::format("{:.{}f}", share * s.step_ms, digits);
        };
        rows.push_back({e.runs[r].name, ms(1, 1), ms(s.ranks, 1), ms(s.gathering, 2),
                        ms(s.deferred, 2), std::to_string(s.agreement.deferrals),
                        percent_text(s.deferral_share(), 2)});
      });
  return text.empty() ? text : "\nranks of a stage, ms of the mean step\n" + text;
}

std::string paper_table(const experiment& e, const std::vector<outcome>& outcomes) {
  std::vector<std::size_t> runs;
  for (std::size_t r = 0; r < e.runs.size(); ++r)
    if (e.runs[r].column != paper_column::none) runs.push_back(r);
  const bool given =
      std::ranges::any_of(e.workloads, [](const auto& w) { return w.paper.in_order_s > 0; });
  if (runs.empty() || !given) return "";
  std::string text;
  for (std::size_t k = 0; k < e.weathers.size(); ++k) {
    text += fmt::format(
        "\nweather {}\nspeed-up over {}\n"
        "the paper's / ours, in brackets the GiB held; !: more than the device has\n",
        e.weathers[k].name, e.baseline);
    table_rows rows{{"workload", "1F1B s"}};
    for (const auto r : runs) rows[0].push_back(e.runs[r].name);
    std::vector<paper_score> scores(runs.size());
    for (std::size_t w = 0; w < e.workloads.size(); ++w) {
      const auto& of = e.workloads[w];
      const auto base = summary_of(e, outcomes, w, k, e.run_index(e.baseline));
      rows.push_back(
          {of.name, fmt::format("{:.2f} / {:5.2f}", of.paper.in_order_s, base.step_ms / 1e3)});
      for (std::size_t i = 0; i < runs.size(); ++i) {
        const auto s = summary_of(e, outcomes, w, k, runs[i]);
        const auto figure = figure_of(of.paper, e.runs[runs[i]].column);
        rows.back().push_back(fmt::format("{} / {:.2f} ({})", figure_text(figure), s.speed_up,
                                          memory_text(of, s.held_bytes_peak)));
        scores[i].add(figure, s.speed_up);
      }
    }
    text += table_text(rows);
    table_rows reached{{"run", "at or above the paper", "geometric means"}};
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const auto& all = scores[i];
      if (all.rows == 0) continue;
      reached.push_back({e.runs[runs[i]].name, fmt::format("{} of {} rows", all.reached, all.rows),
                         all.mean(all.paper_log) + " / " + all.mean(all.ours_log)});
    }
    if (reached.size() > 1) text += "\n" + table_text(reached);
  }
  return text;
}

}  // namespace rrfp::experiment

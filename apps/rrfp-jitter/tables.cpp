#include "tables.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include <rrfp/base/check.hpp>
#include <rrfp/base/statistics.hpp>
#include <rrfp/base/units.hpp>

#include "figure_text.hpp"

namespace rrfp::experiment {

namespace {

/// The outcomes of one run, one per seed; they are contiguous.
const outcome* cells_of(const experiment& e, const std::vector<outcome>& outcomes,
                        std::size_t workload, std::size_t weather, std::size_t run) {
  RRFP_CHECK(outcomes.size() == e.cells(), "there must be one outcome per cell");
  const auto number = (workload * e.weathers.size() + weather) * e.runs.size() + run;
  return outcomes.data() + number * e.seeds.size();
}

double total_ms(const experiment& e, const outcome* cells) {
  double all = 0;
  for (std::size_t i = 0; i < e.seeds.size(); ++i) all += cells[i].mean_ms();
  return all;
}

/// The sample standard deviation; 0 of one value.
double deviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const auto count = static_cast<double>(values.size());
  const auto mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const auto v : values) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / (count - 1));
}

std::string memory_text(const workload_entry& w, std::uint64_t held) {
  if (w.job.cost.preset.empty()) return "";
  const auto size = static_cast<double>(held) / gibibyte;
  return fmt::format("{:.1f}{}", size, size > w.job.machine.memory_gib ? "!" : "");
}

std::size_t width_of_names(const std::vector<std::string_view>& names) {
  std::size_t width = 8;
  for (const auto n : names) width = std::max(width, n.size());
  return width;
}

std::vector<std::string_view> names_of_runs(const experiment& e) {
  std::vector<std::string_view> names;
  for (const auto& r : e.runs) names.push_back(r.name);
  return names;
}

}  // namespace

summary summary_of(const experiment& e, const std::vector<outcome>& outcomes, std::size_t workload,
                   std::size_t weather, std::size_t run) {
  const auto* const cells = cells_of(e, outcomes, workload, weather, run);
  const auto seeds = static_cast<double>(e.seeds.size());
  summary s;
  s.step_ms = total_ms(e, cells) / seeds;
  const auto* const baseline = cells_of(e, outcomes, workload, weather, e.run_index(e.baseline));
  s.speed_up = total_ms(e, baseline) / total_ms(e, cells);
  std::vector<double> step_ms, speed_ups;
  for (std::size_t i = 0; i < e.seeds.size(); ++i) {
    step_ms.push_back(cells[i].mean_ms());
    speed_ups.push_back(baseline[i].mean_ms() / cells[i].mean_ms());
    s.idle += cells[i].idle / seeds;
    s.blocked += cells[i].blocked / seeds;
    s.ranks += cells[i].ranks / seeds;
    s.gathering += cells[i].gathering / seeds;
    s.deferred += cells[i].deferred / seeds;
    s.agreement += cells[i].agreement;
    s.launch_gap_ms += cells[i].launch_gap_ms / seeds;
    s.slots_peak = std::max(s.slots_peak, cells[i].slots_peak);
    s.activation_bytes_peak = std::max(s.activation_bytes_peak, cells[i].activation_bytes_peak);
    s.held_bytes_peak = std::max(s.held_bytes_peak, cells[i].held_bytes_peak);
  }
  s.step_ms_deviation = deviation(step_ms);
  s.speed_up_deviation = deviation(speed_ups);
  return s;
}

std::string results_table(const experiment& e, const std::vector<outcome>& outcomes) {
  const auto width = width_of_names(names_of_runs(e));
  std::string text;
  for (std::size_t w = 0; w < e.workloads.size(); ++w)
    for (std::size_t k = 0; k < e.weathers.size(); ++k) {
      const auto& of = e.workloads[w];
      text += fmt::format(
          "\n{} - weather {}\n{:<{}}  {:>10}  {:>8}  {:>6}  {:>7}  {:>8}  {:>6}  {:>9}  {:>9}\n",
          of.name, e.weathers[k].name, "run", width, "step ms", "speed-up", "paper", "idle",
          "blocked", "slots", "act. GiB", "held GiB");
      for (std::size_t r = 0; r < e.runs.size(); ++r) {
        const auto s = summary_of(e, outcomes, w, k, r);
        const auto activations =
            of.job.cost.preset.empty()
                ? std::string{}
                : fmt::format("{:.1f}", static_cast<double>(s.activation_bytes_peak) / gibibyte);
        text += fmt::format(
            "{:<{}}  {:>10.1f}  {:>7.2f}x  {:>6}  {:>5.1f} %  {:>6.1f} %  {:>6}  {:>9}  {:>9}\n",
            e.runs[r].name, width, s.step_ms, s.speed_up,
            figure_text(figure_of(of.paper, e.runs[r].paper)), 100 * s.idle, 100 * s.blocked,
            s.slots_peak, activations, memory_text(of, s.held_bytes_peak));
      }
    }
  return text;
}

std::string ablation_table(const experiment& e, const std::vector<outcome>& outcomes) {
  if (e.ablation.empty()) return "";
  std::vector<std::string_view> names{e.ablation.begin(), e.ablation.end()};
  const auto width = width_of_names(names);
  std::string text = "\nablation: gain of each run over the previous one\n";
  for (std::size_t w = 0; w < e.workloads.size(); ++w)
    for (std::size_t k = 0; k < e.weathers.size(); ++k) {
      text += fmt::format("\n{} - weather {}\n{:<{}}  {:>10}  {:>8}  {:>8}  {:>6}  {:>9}\n",
                          e.workloads[w].name, e.weathers[k].name, "run", width, "step ms", "gain",
                          "total", "slots", "held GiB");
      double first = 0;
      double before = 0;
      for (const auto& name : e.ablation) {
        const auto s = summary_of(e, outcomes, w, k, e.run_index(name));
        if (first == 0) first = before = s.step_ms;
        text += fmt::format("{:<{}}  {:>10.1f}  {:>7.3f}x  {:>7.3f}x  {:>6}  {:>9}\n", name, width,
                            s.step_ms, before / s.step_ms, first / s.step_ms, s.slots_peak,
                            memory_text(e.workloads[w], s.held_bytes_peak));
        before = s.step_ms;
      }
    }
  return text;
}

std::string weather_table(const experiment& e, const std::vector<outcome>& outcomes) {
  if (e.weathers.size() < 2) return "";
  std::string text = fmt::format("\nslow-down relative to weather {}\n", e.weathers[0].name);
  const auto width = width_of_names(names_of_runs(e));
  for (std::size_t w = 0; w < e.workloads.size(); ++w) {
    text += fmt::format("\n{}\n{:<{}}", e.workloads[w].name, "run", width);
    for (std::size_t k = 1; k < e.weathers.size(); ++k)
      text += fmt::format("  {:>9}", e.weathers[k].name);
    text += "\n";
    for (std::size_t r = 0; r < e.runs.size(); ++r) {
      const auto first = summary_of(e, outcomes, w, 0, r).step_ms;
      text += fmt::format("{:<{}}", e.runs[r].name, width);
      for (std::size_t k = 1; k < e.weathers.size(); ++k)
        text += fmt::format(
            "  {:>{}}",
            fmt::format("{:.2f} %", 100 * (summary_of(e, outcomes, w, k, r).step_ms / first - 1)),
            std::max<std::size_t>(9, e.weathers[k].name.size()));
      text += "\n";
    }
  }
  return text;
}

std::string spread_table(const experiment& e, const std::vector<outcome>& outcomes) {
  if (e.seeds.size() * e.steps < spread_steps) return "";
  const auto width = width_of_names(names_of_runs(e));
  std::string text;
  for (std::size_t w = 0; w < e.workloads.size(); ++w)
    for (std::size_t k = 0; k < e.weathers.size(); ++k) {
      text += fmt::format(
          "\nspread of {} steps: {} - weather {}\n{:<{}}  {:>10}  {:>10}  {:>10}  {:>14}  {:>15}\n",
          e.seeds.size() * e.steps, e.workloads[w].name, e.weathers[k].name, "run", width, "p5 ms",
          "p50 ms", "p95 ms", "(p95-p5)/p50", "(p75-p25)/p50");
      for (std::size_t r = 0; r < e.runs.size(); ++r) {
        std::vector<double> steps;
        const auto* const cells = cells_of(e, outcomes, w, k, r);
        for (std::size_t i = 0; i < e.seeds.size(); ++i)
          steps.insert(steps.end(), cells[i].step_ms.begin(), cells[i].step_ms.end());
        const auto at = [&](double share) { return quantile(steps, share); };
        text += fmt::format("{:<{}}  {:>10.1f}  {:>10.1f}  {:>10.1f}  {:>14.3f}  {:>15.3f}\n",
                            e.runs[r].name, width, at(.05), at(.5), at(.95),
                            (at(.95) - at(.05)) / at(.5), (at(.75) - at(.25)) / at(.5));
      }
    }
  return text;
}

std::string breakdown_table(const experiment& e, const std::vector<outcome>& outcomes) {
  const auto width = width_of_names(names_of_runs(e));
  std::string text = "\nmean step per device, in ms; launch gap: on the stage with the most\n";
  for (std::size_t w = 0; w < e.workloads.size(); ++w)
    for (std::size_t k = 0; k < e.weathers.size(); ++k) {
      text += fmt::format("\n{} - weather {}\n{:<{}}  {:>10}  {:>10}  {:>10}  {:>12}\n",
                          e.workloads[w].name, e.weathers[k].name, "run", width, "step", "tasks",
                          "waiting", "launch gap");
      for (std::size_t r = 0; r < e.runs.size(); ++r) {
        const auto s = summary_of(e, outcomes, w, k, r);
        const auto tasks = (1 - s.idle) * s.step_ms;
        text += fmt::format("{:<{}}  {:>10.1f}  {:>10.1f}  {:>10.1f}  {:>12.2f}\n", e.runs[r].name,
                            width, s.step_ms, tasks, s.step_ms - tasks - s.launch_gap_ms,
                            s.launch_gap_ms);
      }
    }
  return text;
}

std::string ranks_table(const experiment& e, const std::vector<outcome>& outcomes) {
  const auto width = width_of_names(names_of_runs(e));
  std::string text;
  for (std::size_t w = 0; w < e.workloads.size(); ++w)
    for (std::size_t k = 0; k < e.weathers.size(); ++k) {
      std::string rows;
      for (std::size_t r = 0; r < e.runs.size(); ++r) {
        const auto s = summary_of(e, outcomes, w, k, r);
        if (!s.has_rank_waits()) continue;
        const auto ms = [&](double share) { return share * s.step_ms; };
        rows +=
            fmt::format("{:<{}}  {:>10.1f}  {:>10.1f}  {:>10.2f}  {:>10.2f}  {:>9}  {:>7.2f} %\n",
                        e.runs[r].name, width, s.step_ms, ms(s.ranks), ms(s.gathering),
                        ms(s.deferred), s.agreement.deferrals, 100 * s.deferral_share());
      }
      if (rows.empty()) continue;
      text +=
          fmt::format("\n{} - weather {}\n{:<{}}  {:>10}  {:>10}  {:>10}  {:>10}  {:>9}  {:>9}\n{}",
                      e.workloads[w].name, e.weathers[k].name, "run", width, "step ms", "for ranks",
                      "gathering", "deferred", "deferrals", "share", rows);
    }
  return text.empty() ? text : "\nranks of a stage, ms of the mean step\n" + text;
}

std::string paper_table(const experiment& e, const std::vector<outcome>& outcomes) {
  std::vector<std::size_t> runs;
  for (std::size_t r = 0; r < e.runs.size(); ++r)
    if (e.runs[r].paper != paper_column::none) runs.push_back(r);
  const bool given = std::any_of(e.workloads.begin(), e.workloads.end(),
                                 [](const auto& w) { return w.paper.in_order_s > 0; });
  if (runs.empty() || !given) return "";
  std::vector<std::string_view> names;
  for (const auto& w : e.workloads) names.push_back(w.name);
  const auto width = width_of_names(names);
  std::string text;
  for (std::size_t k = 0; k < e.weathers.size(); ++k) {
    text += fmt::format(
        "\nspeed-up over {}, the paper's / ours (GiB held; !: more than the device has), "
        "weather {}\n"
        "{:<{}}  {:>13}",
        e.baseline, e.weathers[k].name, "workload", width, "1F1B s");
    for (const auto r : runs) text += fmt::format("  {:>20}", e.runs[r].name);
    text += "\n";
    struct score {
      double paper = 0;
      double ours = 0;
      int reached = 0;
      int rows = 0;
    };
    std::vector<score> scores(runs.size());
    for (std::size_t w = 0; w < e.workloads.size(); ++w) {
      const auto& of = e.workloads[w];
      const auto base = summary_of(e, outcomes, w, k, e.run_index(e.baseline));
      text += fmt::format("{:<{}}  {:>5.2f} / {:>5.2f}", of.name, width, of.paper.in_order_s,
                          base.step_ms / 1e3);
      for (std::size_t i = 0; i < runs.size(); ++i) {
        const auto s = summary_of(e, outcomes, w, k, runs[i]);
        const auto figure = figure_of(of.paper, e.runs[runs[i]].paper);
        text +=
            fmt::format("  {:>20}", fmt::format("{} / {:.2f} ({})", figure_text(figure), s.speed_up,
                                                memory_text(of, s.held_bytes_peak)));
        if (figure <= 0) continue;
        auto& all = scores[i];
        all.paper += std::log(figure);
        all.ours += std::log(s.speed_up);
        all.reached += s.speed_up >= figure ? 1 : 0;
        ++all.rows;
      }
      text += "\n";
    }
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const auto& all = scores[i];
      if (all.rows == 0) continue;
      text += fmt::format(
          "{}: at or above the paper in {} of {} rows; geometric mean {:.2f} / "
          "{:.2f}\n",
          e.runs[runs[i]].name, all.reached, all.rows, std::exp(all.paper / all.rows),
          std::exp(all.ours / all.rows));
    }
  }
  return text;
}

}  // namespace rrfp::experiment

#include "agreement.hpp"

#include <cmath>

#include <fmt/format.h>

#include <rrfp/base/check.hpp>
#include <rrfp/base/statistics.hpp>

namespace rrfp::experiment {

std::vector<difference> differences_of(const experiment& e, const std::vector<outcome>& simulated,
                                       const std::vector<outcome>& measured) {
  RRFP_CHECK(simulated.size() == e.cells() && measured.size() == e.cells(),
             "both engines must have an outcome for each cell");
  std::vector<difference> all;
  for (std::size_t i = 0; i < e.cells(); ++i) {
    const auto ms = simulated[i].mean_ms();
    const auto tasks_ms = [](const outcome& o) { return (1 - o.idle) * o.mean_ms(); };
    all.push_back({measured[i].mean_ms() / ms - 1, measured[i].launch_gap_ms / ms,
                   (tasks_ms(measured[i]) - tasks_ms(simulated[i])) / ms});
  }
  return all;
}

agreement agreement_of(const std::vector<difference>& differences) {
  std::vector<double> of_time, sizes, gaps, late;
  agreement a{.cells = differences.size()};
  for (const auto& d : differences) {
    of_time.push_back(d.time);
    sizes.push_back(std::abs(d.time));
    gaps.push_back(d.launch_gap);
    late.push_back(d.late_tasks);
    if (std::abs(d.time) <= agreed) continue;
    ++a.disagreeing;
    if (std::abs(d.time - d.launch_gap - d.late_tasks) <= agreed) ++a.explained;
  }
  a.median = median(of_time);
  a.median_size = median(sizes);
  a.p95_size = quantile(sizes, 0.95);
  a.launch_gap = median(gaps);
  a.late_tasks = median(late);
  return a;
}

apps::table_rows agreement_rows(const experiment& e, const std::vector<outcome>& simulated,
                                const std::vector<outcome>& measured) {
  const auto all = differences_of(e, simulated, measured);
  apps::table_rows rows{{"run", "median", "median |d|", "p95 |d|", "launch gap", "late tasks",
                         fmt::format("beyond {:.0f} %", 100 * agreed), "explained"}};
  const auto add = [&](const std::string& name, const std::vector<difference>& differences) {
    const auto a = agreement_of(differences);
    const auto percent = [](double share) { return fmt::format("{:.2f} %", 100 * share); };
    const auto difference = [](double share) { return fmt::format("{:+.2f} %", 100 * share); };
    rows.push_back({name, difference(a.median), percent(a.median_size), percent(a.p95_size),
                    percent(a.launch_gap), difference(a.late_tasks),
                    fmt::format("{} of {}", a.disagreeing, a.cells), std::to_string(a.explained)});
  };
  for (std::size_t r = 0; r < e.runs.size(); ++r) {
    std::vector<difference> of_run;
    for (std::size_t i = 0; i < all.size(); ++i)
      if (i / e.seeds.size() % e.runs.size() == r) of_run.push_back(all[i]);
    add(e.runs[r].name, of_run);
  }
  add("all cells", all);
  return rows;
}

std::string agreement_table(const experiment& e, const std::vector<outcome>& simulated,
                            const std::vector<outcome>& measured) {
  return fmt::format(
      "\nwall clock minus simulator, as a share of the simulator's step, time scale {}\n"
      "(explained: cells beyond 3 % whose launch gaps and late tasks explain it)\n{}",
      e.time_scale, apps::table_text(agreement_rows(e, simulated, measured)));
}

}  // namespace rrfp::experiment

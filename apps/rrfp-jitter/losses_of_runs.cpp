#include "losses_of_runs.hpp"

#include <vector>

#include <fmt/format.h>

#include "../common/table_text.hpp"
#include "cell.hpp"
#include "run_cells.hpp"

namespace rrfp::apps {

namespace {

using simulate::all_recovery_ways;

/// The rows of one MTBF: the cells from `from` on.
std::vector<std::string> row_of(const loss_report& r, std::size_t from) {
  std::vector<std::string> row{r.job, fmt::format("{:.1f}", r.model.step * 1e3)};
  for (std::size_t i = 0; i < all_recovery_ways.size(); ++i) {
    const auto& at = r.rows[from + i];
    row.push_back(at.why_not.empty() ? fmt::format("{:.2f} %", at.costs.useful * 100) : "-");
  }
  return row;
}

std::string table_of(const std::vector<loss_report>& runs, std::size_t from) {
  table_rows rows{{"run", "step ms"}};
  for (const auto way : all_recovery_ways) rows[0].emplace_back(name(way));
  for (const auto& r : runs) rows.push_back(row_of(r, from));
  return table_text(rows);
}

}  // namespace

result<losses_of_runs> losses_of_all(const experiment::experiment& e, loss_options wanted) {
  wanted.saves_at_best = true;  // train.steps is that of a cell
  losses_of_runs made;
  const auto runs = e.runs.size();
  const auto seeds = e.seeds.size();
  for (std::size_t first = 0; first < e.cells(); first += runs * seeds) {
    std::vector<loss_report> reports;
    std::string title;
    for (std::size_t run = 0; run < runs; ++run) {
      const auto number = first + run * seeds;
      const auto c = experiment::cell_at(e, number, experiment::engine_kind::simulator);
      if (auto may = experiment::check_cell(c); !may)
        return within(e.source + ": " + title_of(c, number), may.failure());
      auto one = losses_of(c.job, wanted, e.steps);
      if (!one) return within(e.source + ": " + title_of(c, number), one.failure());
      made.json += json_of(*one, {{"workload", c.workload}, {"weather", c.weather}}) + "\n";
      reports.push_back(*std::move(one));
      title = fmt::format("{} - weather {}", c.workload, c.weather);
    }
    const auto& rows = reports.front().rows;
    for (std::size_t from = 0; from < rows.size(); from += all_recovery_ways.size())
      made.tables +=
          fmt::format("{}, {} nodes, MTBF of a node {:g} h: useful time\n{}\n", title,
                      reports.front().model.nodes, rows[from].mtbf_hours, table_of(reports, from));
  }
  return made;
}

}  // namespace rrfp::apps

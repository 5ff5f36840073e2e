#include "parts.hpp"

namespace rrfp::experiment {

namespace {

measured measure(const experiment& e, const std::vector<outcome>& outcomes, std::size_t workload,
                 std::size_t weather, std::size_t run) {
  measured m;
  m.aggregate = summary_of(e, outcomes, workload, weather, run);
  m.paper = figure_of(e.workloads[workload].paper, e.runs[run].column);
  const auto* const own = cells_of(e, outcomes, workload, weather, run);
  const auto* const baseline = cells_of(e, outcomes, workload, weather, e.run_index(e.baseline));
  for (std::size_t seed = 0; seed < e.seeds.size(); ++seed) {
    for (std::size_t step = 0; step < own[seed].step_ms.size(); ++step) {
      const auto ms = own[seed].step_ms[step];
      m.step_ms.include(ms);
      m.speed_up.include(baseline[seed].step_ms[step] / ms);
    }
  }
  return m;
}

}  // namespace

page_data::page_data(const experiment& e, const engine_outcomes& made, std::size_t rows_max)
    : e_(&e),
      engine_(made.engine),
      workloads_(std::clamp<std::size_t>(rows_max / (e.weathers.size() * e.runs.size()), 1,
                                         e.workloads.size())) {
  for (std::size_t w = 0; w < workloads_; ++w)
    for (std::size_t k = 0; k < e.weathers.size(); ++k)
      for (std::size_t r = 0; r < e.runs.size(); ++r)
        all_.push_back(measure(e, made.outcomes, w, k, r));
}

double page_data::gained(std::size_t workload, std::size_t weather, std::size_t i) const {
  const auto ms = [&](const std::string& run) {
    return at(workload, weather, e_->run_index(run)).aggregate.step_ms;
  };
  return ms(e_->ablation.front()) / ms(e_->ablation[i]);
}

}  // namespace rrfp::experiment

/// The figures of an experiment that its page shows, computed once, and the page's charts and
/// tables.
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "../tables.hpp"

namespace rrfp::experiment {

struct spread {
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();

  void include(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
};

/// One run of one workload in one weather.
struct measured {
  summary aggregate;
  /// Over the steps of all seeds; the speed-up of a step is relative to the same step of the
  /// baseline.
  spread step_ms;
  spread speed_up;
  /// The paper's speed-up; 0: not given.
  double paper = 0;
};

class page_data {
 public:
  page_data(const experiment& e, const engine_outcomes& made, std::size_t rows_max);

  const experiment& source() const { return *e_; }
  engine_kind engine() const { return engine_; }
  /// Number of workloads included: the first ones, at least one.
  std::size_t workloads() const { return workloads_; }
  const measured& at(std::size_t workload, std::size_t weather, std::size_t run) const {
    return all_[(workload * e_->weathers.size() + weather) * e_->runs.size() + run];
  }

  /// Step time of the first run in e.ablation over that of entry `i`.
  double gained(std::size_t workload, std::size_t weather, std::size_t i) const;

 private:
  const experiment* e_;
  engine_kind engine_;
  std::size_t workloads_;
  std::vector<measured> all_;
};

// Charts: SVG, one panel per workload; all panels of one weather share one scale.

/// One dot per run: its speed-up over the baseline, with the spread of its steps and the paper's
/// figure.
std::string speed_up_charts(const page_data& x, std::size_t weather);

/// One bar per entry of e.ablation: from the previous speed-up to its own. Empty without an
/// ablation.
std::string ablation_charts(const page_data& x, std::size_t weather);

/// The name of a run, short enough for the names of a chart.
std::string cut(std::string_view name);

// Tables.

/// One row per workload with the paper's speed-ups beside ours; empty if no workload has any.
std::string paper_rows(const page_data& x, std::size_t weather);

/// One table per workload: step time, device time and memory of each run.
std::string workload_tables(const page_data& x, std::size_t weather);

/// One row per run: how well the times of the last engine agree with those of the first.
std::string agreement_html(const experiment& e, const std::vector<outcome>& simulated,
                           const std::vector<outcome>& measured);

/// Geometric mean, minimum and maximum of a run's speed-ups over the workloads.
struct overall {
  double mean = 1;
  spread range;
  double idle = 0;
};

overall overall_of(const page_data& x, std::size_t weather, std::size_t run);

}  // namespace rrfp::experiment

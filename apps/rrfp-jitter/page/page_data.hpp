/// The figures of an experiment that its page shows, computed once.
#pragma once

#include <vector>

#include "../tables.hpp"

namespace rrfp::experiment {

struct spread {
  double least = 0;
  double most = 0;
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

}  // namespace rrfp::experiment

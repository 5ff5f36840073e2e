/// The results of an experiment as tables for a terminal.
#pragma once

#include <string>
#include <vector>

#include "cell.hpp"

namespace rrfp::experiment {

/// One run of one workload in one weather: the means of the shares and of the launch gap over all
/// seeds, the sums of the agreement, the largest peaks.
struct summary : figures {
  /// Mean over seeds and steps, in milliseconds.
  double step_ms = 0;
  /// The baseline's time over this run's time, both summed over the seeds (paired).
  double speed_up = 1;
  /// Sample standard deviations over the seeds; 0 with one seed.
  double step_ms_deviation = 0;
  double speed_up_deviation = 0;

  /// Whether ranks of a stage ever waited for each other.
  bool has_rank_waits() const { return ranks > 0 || agreement.gathers > 0; }
  /// Returns the share of the gatherings in which the picks differed.
  double deferral_share() const {
    return agreement.gathers == 0
               ? 0
               : static_cast<double>(agreement.deferrals) / static_cast<double>(agreement.gathers);
  }
};

/// Here and below, `outcomes` has one entry per cell, in the order of the cells.
summary summary_of(const experiment& e, const std::vector<outcome>& outcomes, std::size_t workload,
                   std::size_t weather, std::size_t run);

/// The outcomes of one run, one per seed; they are contiguous.
const outcome* cells_of(const experiment& e, const std::vector<outcome>& outcomes,
                        std::size_t workload, std::size_t weather, std::size_t run);

/// "1.56"; empty without a figure.
std::string figure_text(double figure);

/// The GiB that a device holds, with "!" if it has fewer; empty for a workload that gives only
/// times.
std::string memory_text(const workload_entry& w, std::uint64_t held);

/// The paper's speed-ups of one run beside ours, over the workloads for which it has one.
struct paper_score {
  double paper_log = 0;
  double ours_log = 0;
  int reached = 0;
  int rows = 0;

  /// `paper`: 0: it has none.
  void add(double paper, double ours);
  /// "1.56": the geometric mean by the sum of its logarithms.
  std::string mean(double logs) const;
};

/// Every run of every workload in every weather: step time, speed-up over the baseline beside the
/// paper's, idle share, and the memory held; "!" marks more memory than the device has.
std::string results_table(const experiment& e, const std::vector<outcome>& outcomes);

/// The gain of each run in e.ablation over the previous one; empty without an ablation.
std::string ablation_table(const experiment& e, const std::vector<outcome>& outcomes);

/// The slow-down of each run in each weather relative to the first weather; empty with one weather.
std::string weather_table(const experiment& e, const std::vector<outcome>& outcomes);

/// The spread of the steps of a run over all seeds: quantiles and the paper's two measures of
/// spread; empty with fewer than spread_steps steps.
std::string spread_table(const experiment& e, const std::vector<outcome>& outcomes);
inline constexpr std::size_t spread_steps = 20;

/// The mean step of each run split into tasks, waiting and launches per device; for outcomes of the
/// wall clock.
std::string breakdown_table(const experiment& e, const std::vector<outcome>& outcomes);

/// What the tensor-parallel ranks of a stage waited for each other, in milliseconds of the mean
/// step of a device: for inputs and ends of tasks of other ranks, for the exchange of picks, and
/// because picks differed while a task was ready on every rank. Empty if they never waited.
std::string ranks_table(const experiment& e, const std::vector<outcome>& outcomes);

/// One row per workload: the paper's speed-ups beside ours; empty if no workload has any.
std::string paper_table(const experiment& e, const std::vector<outcome>& outcomes);

}  // namespace rrfp::experiment

/// The results of an experiment as tables for a terminal.
#pragma once

#include <string>
#include <vector>

#include <rrfp/experiment/cell.hpp>

namespace rrfp::experiment {

/// One run of one workload in one weather, over all seeds.
struct summary {
  /// Mean over seeds and steps, in milliseconds.
  double step_ms = 0;
  /// The baseline's time over this run's time, both summed over the seeds (paired).
  double speed_up = 1;
  double idle = 0;
  double blocked = 0;
  /// Wall clock: the runtime's own overhead.
  double launch_gap_ms = 0;
  /// Maximum over the seeds.
  std::uint32_t slots_peak = 0;
  std::uint64_t activation_bytes_peak = 0;
  std::uint64_t held_bytes_peak = 0;
};

/// Here and below, `outcomes` has one entry per cell, in the order of the cells.
summary summary_of(const experiment& e, const std::vector<outcome>& outcomes, std::size_t workload,
                   std::size_t weather, std::size_t run);

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

/// One row per workload: the paper's speed-ups beside ours; empty if no workload has any.
std::string paper_table(const experiment& e, const std::vector<outcome>& outcomes);

}  // namespace rrfp::experiment

/// What an experiment says, as tables for a terminal.
#pragma once

#include <string>
#include <vector>

#include <rrfp/experiment/cell.hpp>

namespace rrfp::experiment {

/// A run of one workload in one weather, over all seeds.
struct summary {
  /// Mean over seeds and steps.
  double step_ms = 0;
  /// Of the baseline's time over this run's, the sums over seeds: paired.
  double speed_up = 1;
  double idle = 0;
  double blocked = 0;
  /// Of the wall clock: what the runtime itself took.
  double launch_gap_ms = 0;
  /// Of the worst seed.
  std::uint32_t slots_peak = 0;
  std::uint64_t activation_bytes_peak = 0;
  std::uint64_t held_bytes_peak = 0;
};

/// `outcomes` has one entry a cell, in the order of the cells; as in all functions here.
summary summary_of(const experiment& e, const std::vector<outcome>& outcomes, std::size_t workload,
                   std::size_t weather, std::size_t run);

/// Every run of every workload in every weather: step time, speed-up over the baseline beside the
/// paper's, idle share, and the memory that was really held; "!" where the device has less.
std::string results_table(const experiment& e, const std::vector<outcome>& outcomes);

/// The gain of each run over the one before it, in the order of e.ablation; empty without one.
std::string ablation_table(const experiment& e, const std::vector<outcome>& outcomes);

/// How much longer each run takes in each weather than in the first one; empty with one weather.
std::string weather_table(const experiment& e, const std::vector<outcome>& outcomes);

/// How far the steps of a run lie apart, over all seeds: quantiles and the paper's two measures of
/// spread; empty with fewer than spread_steps steps.
std::string spread_table(const experiment& e, const std::vector<outcome>& outcomes);
inline constexpr std::size_t spread_steps = 20;

/// Where the mean step of each run goes on a device: tasks, waiting, launches; of outcomes of the
/// wall clock.
std::string breakdown_table(const experiment& e, const std::vector<outcome>& outcomes);

/// A row a workload: the paper's speed-ups beside ours; empty if no workload has any.
std::string paper_table(const experiment& e, const std::vector<outcome>& outcomes);

}  // namespace rrfp::experiment

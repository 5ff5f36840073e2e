/// How far the wall clock is from what the simulator says of the same cells, and why.
///
/// The runtime adds what the simulator does not know: launch gaps (a device is free and its stage
/// waits for nothing, while mailboxes, the decision and the launch take their time), timers that
/// ring late, so that tasks take longer, the way of messages through mailboxes, and what other
/// decisions follow from all of them.
#pragma once

#include <string>
#include <vector>

#include <rrfp/experiment/cell.hpp>

namespace rrfp::experiment {

/// Of one cell, as shares of the simulated time.
struct difference {
  /// Of the measured mean step from the simulated one.
  double time = 0;
  /// The launch gaps of the stage with most of them.
  double launch_gap = 0;
  /// What tasks took longer, in the mean of the devices.
  double late_tasks = 0;
};

/// In the order of the cells; so are both arguments.
std::vector<difference> differences_of(const experiment& e, const std::vector<outcome>& simulated,
                                       const std::vector<outcome>& measured);

/// The nearest value below which `share` of the values lie; of no value, a programmer's error.
double quantile(std::vector<double> values, double share);

/// Two times that differ by no more agree.
inline constexpr double agreed = 0.03;

struct agreement {
  std::size_t cells = 0;
  double median = 0;
  double median_size = 0;  ///< of the absolute differences
  double p95_size = 0;
  double launch_gap = 0;  ///< median
  double late_tasks = 0;  ///< median
  /// Cells that do not agree, and those of them that would without their launch gaps and late tasks.
  std::size_t apart = 0;
  std::size_t explained = 0;
};

agreement agreement_of(const std::vector<difference>& differences);

/// A line a run and one over all cells.
std::string agreement_table(const experiment& e, const std::vector<outcome>& simulated,
                            const std::vector<outcome>& measured);

}  // namespace rrfp::experiment

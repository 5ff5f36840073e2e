/// Compares the wall clock with the simulator, cell by cell, and explains the difference.
///
/// The runtime adds costs that the simulator does not model: launch gaps (a device is free and its
/// stage waits for nothing, while mailboxes, the decision and the launch take time), timers that
/// fire late, so that tasks take longer, the transit of messages through mailboxes, and the
/// different decisions that follow from all of these.
#pragma once

#include <string>
#include <vector>

#include "../common/table_text.hpp"
#include "cell.hpp"

namespace rrfp::experiment {

/// Differences of one cell, as shares of the simulated time.
struct difference {
  /// Difference of the measured mean step from the simulated one.
  double time = 0;
  /// Launch gaps of the stage that has the most.
  double launch_gap = 0;
  /// Extra duration of the tasks, averaged over the devices.
  double late_tasks = 0;
};

/// One entry per cell, in the order of the cells, as in both arguments.
std::vector<difference> differences_of(const experiment& e, const std::vector<outcome>& simulated,
                                       const std::vector<outcome>& measured);

/// Two times agree if they differ by no more than this share.
inline constexpr double agreed = 0.03;

struct agreement {
  std::size_t cells = 0;
  double median = 0;
  double median_size = 0;  ///< of the absolute differences
  double p95_size = 0;
  double launch_gap = 0;  ///< median
  double late_tasks = 0;  ///< median
  /// Number of cells that disagree, and of those that launch gaps and late tasks explain.
  std::size_t disagreeing = 0;
  std::size_t explained = 0;
};

agreement agreement_of(const std::vector<difference>& differences);

/// Headings, one row per run and one over all cells.
apps::table_rows agreement_rows(const experiment& e, const std::vector<outcome>& simulated,
                                const std::vector<outcome>& measured);

/// The same as text.
std::string agreement_table(const experiment& e, const std::vector<outcome>& simulated,
                            const std::vector<outcome>& measured);

}  // namespace rrfp::experiment

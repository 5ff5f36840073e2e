/// Runs the cells of an experiment that its results folder does not hold yet.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "store.hpp"

namespace rrfp::apps {

struct cell_options {
  /// Number of concurrent cells on the wall clock; the simulator uses every core.
  std::size_t jobs = 1;
  /// Called before each cell; no further cell starts once it returns true.
  std::function<bool()> interrupted;
};

/// The description of a cell for messages.
std::string title_of(const experiment::cell& c, std::size_t number);

/// Runs one engine after the other, in the order of e.engines; returns fewer outcomes if
/// interrupted. `done` keeps all completed cells. Errors: the failed cell with the smallest number;
/// a store that cannot be written.
result<std::vector<experiment::engine_outcomes>> run_cells(const experiment::experiment& e,
                                                           experiment::store& done,
                                                           const cell_options& options);

/// Runs the cell on its engine.
result<experiment::outcome> run_cell(const experiment::cell& c);

/// The engine `processes`: runs a cell as a job of several rrfp-jitter-node processes on this
/// machine.
///
/// A cell with a fault measures the time between the ends of steps, to some milliseconds, so that
/// the step after the fault includes what the fault cost. Errors: also those of rrfp-jitter-node,
/// by the last line that it printed.
result<experiment::outcome> run_in_processes(const experiment::cell& c);

}  // namespace rrfp::apps

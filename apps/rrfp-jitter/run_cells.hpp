/// Runs the cells of an experiment that its folder does not hold yet.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include <rrfp/experiment/store.hpp>

namespace rrfp::apps {

struct cell_options {
  /// Cells that run at the same time on the wall clock; the simulator takes every core.
  std::size_t jobs = 1;
  /// Asked before each cell; no further one begins once it says so.
  std::function<bool()> interrupted;
};

/// The names of a cell, for people.
std::string title_of(const experiment::cell& c, std::size_t number);

/// One engine after the other, in the order of e.engines; fewer than all outcomes when interrupted.
/// What is done is in `done`. Errors: the first cell that failed, by number; a store that cannot be
/// written.
result<std::vector<experiment::engine_outcomes>> run_cells(const experiment::experiment& e,
                                                           experiment::store& done,
                                                           const cell_options& options);

/// The engine of this name.
std::unique_ptr<experiment::engine> make_engine(experiment::engine_kind kind);

}  // namespace rrfp::apps

/// Steps of 1F1B from the mean times of each stage, for logs that say no more.
#pragma once

#include <vector>

#include <rrfp/foreign/read_traces.hpp>

namespace rrfp::foreign {

/// Mean times of one task of a stage, in milliseconds.
struct mean_times {
  double forward = 0;
  double backward = 0;
};

/// By step and stage; each step has the same number of stages, at least one.
using times_of_steps = std::vector<std::vector<mean_times>>;

/// Each task takes the mean of its stage in that step, messages take no time, and each step begins
/// at the end of the one before. Of many steps, the last ones are made. Sets the shape and the
/// tasks of `made`, and appends to its notes. Errors: too many tasks in a step, or times beyond 11
/// days.
status make_mean_steps(const times_of_steps& times, std::uint32_t microbatches, found_run& made);

}  // namespace rrfp::foreign

/// Finds why a pipeline makes no progress. Follows the wait of each stage to its root cause: from a
/// missing input to its sender, from a missing slot to its holder, from a task to the task before
/// it. Pure: no clock, thread or actor.
#pragma once

#include <string>
#include <vector>

#include <rrfp/core/placement.hpp>

#include "stage_state.hpp"

namespace rrfp::actors {

struct job_dimensions {
  pipeline_shape shape;
  std::uint32_t ranks = 1;
  std::uint32_t replicas = 1;
};

/// One line for each root cause, the one that most stages wait for first. A stage without a state
/// did not answer. Empty if no stage waits for anything.
std::vector<std::string> causes_of(const job_dimensions& job,
                                   const std::vector<stage_state>& states);

/// What the stage holds and what it is missing, one line each, without the decisions.
std::vector<std::string> details_of(const job_dimensions& job, const stage_state& state);

}  // namespace rrfp::actors

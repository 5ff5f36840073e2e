/// The stragglers of a timeline; see rrfp/core/stragglers.hpp. A trace does not tell how long
/// ranks wait for each other inside tasks, so with tensor parallelism all ranks of a stage are
/// late.
#pragma once

#include <vector>

#include <rrfp/core/stragglers.hpp>
#include <rrfp/report/timeline.hpp>

namespace rrfp::report {

struct late_stage {
  straggler what;  ///< when it was latest
  step_id first;   ///< the steps between which it was found
  step_id last;
};

/// In order of the stages. Steps that are incomplete do not count.
std::vector<late_stage> find_late(const timeline& t);

}  // namespace rrfp::report

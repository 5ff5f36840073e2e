/// The engine `processes`: runs a cell as a job of several rrfp-jitter-node processes on this
/// machine.
#pragma once

#include "cell.hpp"

namespace rrfp::apps {

/// A cell with a fault measures the time between the ends of steps, to some milliseconds, so that
/// the step after the fault includes what the fault cost. Errors: also those of rrfp-jitter-node,
/// by the last line that it printed.
result<experiment::outcome> run_in_processes(const experiment::cell& c);

}  // namespace rrfp::apps

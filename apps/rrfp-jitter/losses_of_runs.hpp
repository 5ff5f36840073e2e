/// What losses of nodes cost the runs of an experiment.
#pragma once

#include <string>

#include "../rrfp-sim/losses.hpp"
#include "experiment.hpp"

namespace rrfp::apps {

struct losses_of_runs {
  std::string tables;  ///< for each workload, weather and MTBF, the useful time of each run
  std::string json;    ///< a line for each run, with its workload and weather: see json_of()
};

/// With the first seed, simulated; all save at the best interval of each MTBF. Errors: those of
/// losses_of(), with the run.
result<losses_of_runs> losses_of_all(const experiment::experiment& e, loss_options wanted);

}  // namespace rrfp::apps

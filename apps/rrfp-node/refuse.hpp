/// Error messages for jobs that cannot run.
#pragma once

#include <string>

#include <rrfp/job/job.hpp>

#include "../common/program.hpp"

namespace rrfp::apps {

/// The ranks cannot be placed on the nodes. The message names pipeline.nodes if the job sets it.
inline error misplaced(const job::job& j, const std::string& message) {
  if (j.pipeline.nodes.empty()) return error{j.source + ": " + message};
  return job::blame(j, "pipeline.nodes", message);
}

}  // namespace rrfp::apps

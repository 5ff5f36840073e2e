/// What the commands say to a job that cannot run.
#pragma once

#include <string>

#include <rrfp/job/job.hpp>

#include "../common/program.hpp"

namespace rrfp::apps {

/// Ranks that cannot lie on the nodes: the job's own list is to blame if there is one.
inline error misplaced(const job::job& j, const std::string& message) {
  if (j.pipeline.nodes.empty()) return error{j.source + ": " + message};
  return job::blame(j, "pipeline.nodes", message);
}

}  // namespace rrfp::apps

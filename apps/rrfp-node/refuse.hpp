/// What the commands say to bad input: one line, and the exit code for it.
#pragma once

#include <string>

#include <fmt/format.h>

#include <rrfp/job/job.hpp>

#include "exit_code.hpp"

namespace rrfp::apps {

inline int refuse(const std::string& message) {
  fmt::print(stderr, "rrfp-node: {}\n", message);
  return exit_bad_input;
}

/// Ranks that cannot lie on the nodes: the job's own list is to blame if there is one.
inline error misplaced(const job::job& j, const std::string& message) {
  if (j.pipeline.nodes.empty()) return error{j.source + ": " + message};
  return job::blame(j, "pipeline.nodes", message);
}

}  // namespace rrfp::apps

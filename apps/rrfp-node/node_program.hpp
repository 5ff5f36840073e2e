/// The program of a node.
#pragma once

#include <rrfp/job/job.hpp>

namespace rrfp::apps {

/// Runs the command of the arguments, on jobs of these keys, and returns the exit code.
int run_node_program(const char* name, const job::schema& keys, int argc, char** argv);

}  // namespace rrfp::apps

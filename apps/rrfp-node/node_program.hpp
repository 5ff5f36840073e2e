/// The program of a node.
#pragma once

#include <functional>

#include <rrfp/job/job.hpp>

namespace rrfp::actors {

struct session_setup;

}  // namespace rrfp::actors

namespace rrfp::apps {

struct node_program {
  const char* name = nullptr;
  /// Those that its jobs may have.
  const job::schema& keys;
  /// Changes the setup of each session. May be empty.
  std::function<void(const job::job&, actors::session_setup&)> prepare;
};

/// Runs the command of the arguments, and returns the exit code. `of` must outlive the program's
/// threads.
int run_node_program(const node_program& of, int argc, char** argv);

}  // namespace rrfp::apps

/// What rrfp-node and programs like it have in common: all but the keys of their jobs.
#pragma once

#include <functional>

#include <rrfp/job/job.hpp>

namespace rrfp::actors {

struct session_setup;

}  // namespace rrfp::actors

namespace rrfp::apps {

struct node_program {
  /// The keys of its jobs.
  const job::schema& known;
  /// Changes the setup of each session. May be empty.
  std::function<void(const job::job&, actors::session_setup&)> prepare;
};

/// Runs the command that the arguments name. Returns the exit code of the program.
int run_node_program(const node_program& of, int argc, char** argv);

}  // namespace rrfp::apps

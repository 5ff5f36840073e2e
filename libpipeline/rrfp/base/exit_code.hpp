/// Exit codes of all programs.
#pragma once

#include <rrfp/base/result.hpp>

namespace rrfp {

enum exit_code : int {
  exit_done = 0,
  /// An internal error; or the work succeeded, but an output or the last checkpoint could not be
  /// written.
  exit_failed = 1,
  /// A bad job, bad data or bad arguments; also bad data found during the run, and a NaN loss.
  exit_bad_input = 2,
  exit_node_lost = 3,  ///< a node or rank was lost
  exit_drained = 4,    ///< this node has left a job that goes on when another takes its place
  exit_interrupted = 130,
};

constexpr exit_code exit_code_of(error_kind kind) {
  switch (kind) {
    case error_kind::bad_input: return exit_bad_input;
    case error_kind::failed: return exit_failed;
    case error_kind::node_lost: return exit_node_lost;
    case error_kind::interrupted: return exit_interrupted;
  }
  return exit_failed;
}

}  // namespace rrfp

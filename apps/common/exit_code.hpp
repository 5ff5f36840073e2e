/// Exit codes of all programs.
#pragma once

namespace rrfp::apps {

enum exit_code : int {
  exit_done = 0,
  /// An internal error; or the work succeeded, but an output or the last checkpoint could not be
  /// written.
  exit_failed = 1,
  /// A bad job, bad data or bad arguments; also bad data found during the run, and a NaN loss.
  exit_bad_input = 2,
  exit_node_lost = 3,  ///< a node or rank was lost
  exit_interrupted = 130,
};

}  // namespace rrfp::apps

/// How programs end.
#pragma once

namespace rrfp::apps {

enum exit_code : int {
  exit_done = 0,
  /// The product failed; or all went well and an output, or the last checkpoint, could not be
  /// written.
  exit_own_fault = 1,
  exit_bad_input = 2,  ///< the user's job, data or arguments
  exit_node_lost = 3,  ///< a node or rank was lost
  exit_interrupted = 130,
};

}  // namespace rrfp::apps

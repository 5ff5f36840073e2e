/// How programs end.
#pragma once

namespace rrfp::apps {

enum exit_code : int {
  exit_done = 0,
  /// The product failed; or all went well and an output, or the last checkpoint, could not be
  /// written.
  exit_own_fault = 1,
  /// The user's job, data or arguments; also data that turns out bad on the way, and a loss that is
  /// no number.
  exit_bad_input = 2,
  exit_node_lost = 3,  ///< a node or rank was lost
  exit_interrupted = 130,
};

}  // namespace rrfp::apps

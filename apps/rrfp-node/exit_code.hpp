/// How programs end.
#pragma once

namespace rrfp::apps {

enum exit_code : int {
  exit_done = 0,
  exit_own_fault = 1,  ///< the product failed
  exit_bad_input = 2,  ///< the user's job, data or arguments
  exit_node_lost = 3,  ///< a node or rank was lost
  exit_interrupted = 130,
};

}  // namespace rrfp::apps

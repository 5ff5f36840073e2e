/// Reads a trace of torch.profiler (Kineto). Beside the names of rank_trace.hpp it has
///
///   gloo:send, gloo:recv                    messages until they end
///   .../stage.py(737): backward_one_chunk   Python functions, with with_stack=True: exact
#pragma once

#include "rank_trace.hpp"

namespace rrfp::foreign {

/// Errors name the file: it is not JSON, cut off, or no trace of the profiler.
result<rank_trace> read_kineto(const std::string& file);

}  // namespace rrfp::foreign

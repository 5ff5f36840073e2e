/// Checks the contract of a policy before a core uses it.
#pragma once

#include <rrfp/base/result.hpp>
#include <rrfp/core/placement.hpp>
#include <rrfp/core/policy.hpp>
#include <rrfp/core/stage_core.hpp>

namespace rrfp {

/// A policy must have 1 to lanes_max lanes (one for in-order dispatch), choose B or BW for every
/// microbatch and chunk, name a valid lane for each task, and divide a W into 1 to
/// weight_pieces_max pieces. The error names the function and the value that it returned. Calls
/// only functions that must not depend on what has run; exceptions of the policy propagate.
status check_policy(const policy& hint, const pipeline_shape& shape, dispatch_mode mode);

}  // namespace rrfp

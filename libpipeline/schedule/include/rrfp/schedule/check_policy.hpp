/// What a policy must keep to, looked at before a core obeys it.
#pragma once

#include <rrfp/schedule/placement.hpp>
#include <rrfp/schedule/policy.hpp>
#include <rrfp/schedule/result.hpp>
#include <rrfp/schedule/stage_core.hpp>

namespace rrfp {

/// 1 to lanes_max lanes, one for in-order dispatch; B or BW for every microbatch and chunk, and a
/// lane for each of its tasks. The error names the function and what it gave. Calls what must not
/// depend on what has run, and lets through what it throws.
status check_policy(const policy& hint, const pipeline_shape& shape, dispatch_mode mode);

}  // namespace rrfp

/// The cores of a plan's stages.
#pragma once

#include <vector>

#include <rrfp/simulate/simulator.hpp>

namespace rrfp::simulate {

/// Error: shapes or modes that the simulator refuses.
status check_plan(const plan& p);

/// One core for each stage. Error: a policy without a schedule in in-order mode.
result<std::vector<stage_core>> make_cores(const plan& p);

}  // namespace rrfp::simulate

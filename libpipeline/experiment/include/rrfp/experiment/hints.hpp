/// The hint of a cell: its policy, or what its run derives from the policy.
#pragma once

#include <memory>

#include <rrfp/experiment/cell_costs.hpp>
#include <rrfp/policies/registry.hpp>

namespace rrfp::experiment {

/// Errors: a policy without a schedule for the shape; a schedule that stalls.
result<std::shared_ptr<const policies::policy_set>> hints_of(const cell_model& model);

/// The simulation plan of one step.
simulate::plan plan_of(const cell_model& model,
                       std::shared_ptr<const policies::policy_set> policies,
                       const step_costs& costs);

}  // namespace rrfp::experiment

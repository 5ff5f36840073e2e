/// What ranks the tasks of a cell: its policy, or what its run makes of that.
#pragma once

#include <memory>

#include <rrfp/experiment/cell_costs.hpp>
#include <rrfp/policies/registry.hpp>

namespace rrfp::experiment {

/// Errors: a policy that the shape has no schedule for; a schedule that comes to a stand.
result<std::shared_ptr<const policies::policy_set>> hints_of(const cell_model& model);

/// Of one step.
simulate::plan plan_of(const cell_model& model,
                       std::shared_ptr<const policies::policy_set> policies,
                       const step_costs& costs);

}  // namespace rrfp::experiment

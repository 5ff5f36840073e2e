/// Derives the policies, limits and expected times of every stage from a job. The runtime, the
/// simulator and `rrfp-node check` share this plan, so a simulation describes what runs.
#pragma once

#include <memory>
#include <vector>

#include <rrfp/job/job.hpp>
#include <rrfp/policies/registry.hpp>
#include <rrfp/simulate/simulator.hpp>
#include <rrfp/simulate/stage_costs.hpp>

namespace rrfp::plan {

struct dispatch_plan {
  pipeline_shape shape;
  dispatch_mode mode = dispatch_mode::ready;
  std::uint32_t lookahead = 0;
  /// Indexed by stage.
  std::vector<memory_limit> limits;
  std::shared_ptr<const policies::policy_set> policies;
};

/// In in-order mode, a policy without a fixed schedule becomes one: the order that it gives with
/// the job's expected costs and no disturbance. Errors: those of make_policy_set() and
/// check_sequences().
result<dispatch_plan> make_dispatch_plan(const job::job& j);

/// The expected times of the job ([cost]) with its jitter ([jitter]) and delays (jitter.delays).
/// The error describes what is wrong with the file of delays.
result<simulate::stage_costs> expected_costs(const job::job& j);
/// The same without jitter and delays.
simulate::stage_costs nominal_costs(const job::job& j);

/// Converts the plan for the simulator. The result holds no reference to `p`.
simulate::plan simulation_of(const dispatch_plan& p, std::uint64_t steps);

}  // namespace rrfp::plan

/// Derives the policies, limits and expected times of every stage from a job. The runtime, the
/// simulator and `rrfp-node check` share this plan, so a simulation describes what runs.
#pragma once

#include <memory>

#include <rrfp/core/policy.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/simulate/simulator.hpp>
#include <rrfp/simulate/stage_costs.hpp>

namespace rrfp::job {

/// As a simulation of one step; `ranks`: those of a stage whose delays may differ.
struct dispatch_plan : simulate::plan {
  /// policies->name(): the name in the job.
  std::shared_ptr<const policy_set> policies;
};

/// In in-order mode, a policy without a fixed schedule becomes one: the order that it gives with
/// the job's expected costs and no disturbance. Errors name the key: those of
/// policy_registry::make() and check_sequences().
result<dispatch_plan> make_dispatch_plan(const job& j, const policy_registry& policies);

/// The expected times of a replica of the job ([cost]) with its jitter ([jitter]) and delays
/// (jitter.delays). Replica r draws its jitter with the seed + r * 2^32. The error describes what
/// is wrong with the file of delays.
result<simulate::stage_costs> expected_costs(const job& j, replica_id replica = replica_id{0});
/// The same without jitter and delays.
simulate::stage_costs nominal_costs(const job& j);

/// The simulation of so many steps, with the bytes that the costs count, if they do. The result
/// holds no reference to `p`.
simulate::plan simulation_of(const dispatch_plan& p, const simulate::stage_costs& costs,
                             std::uint64_t steps);

/// The simulation of so many steps of a job, with its expected costs.
struct job_simulation : dispatch_plan {
  simulate::stage_costs costs;
};
/// `slot_bytes`, if not empty, instead of the bytes that the costs count. Errors: those of
/// make_dispatch_plan() and expected_costs(); dispatch.slot_bytes is set and nothing counts the
/// bytes.
result<job_simulation> simulation_of(const job& j, const policy_registry& policies,
                                     std::uint64_t steps, replica_id replica = replica_id{0},
                                     simulate::microbatch_bytes slot_bytes = {});

}  // namespace rrfp::job

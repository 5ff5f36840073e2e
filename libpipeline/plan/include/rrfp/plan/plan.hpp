/// What the words of a job come to before anything runs: policies, limits and expected times of
/// every stage. The runtime, the simulator and `rrfp-node check` all start from here, so what is
/// simulated is what runs.
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

/// In in-order mode a policy that works in rounds becomes a fixed schedule: the order that it gives
/// with the job's expected costs and no disturbance. Errors: what make_policy_set() and
/// check_sequences() say.
result<dispatch_plan> make_dispatch_plan(const job::job& j);

/// Expected times of the job ([cost]) under its weather ([jitter]) and with the delays that it
/// gives (jitter.delays). The error names what is wrong with their file.
result<simulate::stage_costs> expected_costs(const job::job& j);
/// The same on a day without weather, and without delays.
simulate::stage_costs nominal_costs(const job::job& j);

/// The plan as the simulator takes it. The result refers to nothing in `p`.
simulate::plan simulation_of(const dispatch_plan& p, std::uint64_t steps);

}  // namespace rrfp::plan

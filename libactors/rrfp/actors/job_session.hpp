/// Makes the setup of the session of a job, on one node or on several.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <rrfp/actors/framework.hpp>
#include <rrfp/actors/session.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/job/plan.hpp>
#include <rrfp/membership/membership.hpp>

namespace rrfp::actors {

/// Policies, limits, weather and training of the job, for a model and data that the job file does
/// not describe. The caller sets them, checkpoints and hooks. `policies`: those that
/// dispatch.policy may name.
result<session_setup> make_setup_without_model(const job::job& j, const policy_registry& policies);

/// A session of the job's model, or, if it is null, of its emulation, with the policies, limits and
/// weather of the job. The caller sets hooks (on_step, trace, ...), the checkpoint to resume from
/// and, on node 0, the checkpoint ring (job_checkpoint.hpp).
result<session_setup> make_session_setup(const job::job& j, const policy_registry& policies,
                                         const job_model* model);

/// `fingerprints`: job_model::fingerprint() of each node; empty of absent ones. Error: names the
/// first node whose fingerprint differs from that of the first one that is there.
status check_same_data(std::span<const std::string> fingerprints);

/// This process as a node of a job.
struct job_node {
  membership* members = nullptr;  ///< null: the only node

  bool leads() const { return members == nullptr || members->leads(); }
};

}  // namespace rrfp::actors

/// The checks of load_job() for a job that a program made or changed.
#pragma once

#include <rrfp/job/job.hpp>

namespace rrfp::job {

/// Checks that each value is in the range of its key, and that the values fit each other, the disk
/// and the policy. The error names the place of the key, or "the job: KEY" if no file set it.
/// Variants are not checked.
status check_job(const job& j, const policy_registry& policies, job_use use);

}  // namespace rrfp::job

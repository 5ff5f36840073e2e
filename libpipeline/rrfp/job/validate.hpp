/// Checks across keys: whether the values fit each other, the disk and the policy.
#pragma once

#include <rrfp/job/job.hpp>
#include <rrfp/job/provenance.hpp>

namespace rrfp::job {

/// Maximum of microbatches * virtual stages; bounds the time and memory for checking a schedule.
inline constexpr std::uint64_t tasks_max = std::uint64_t{1} << 22;

/// The source of the job as messages name it: "the job" if a program made it.
std::string source_of(const job& j);

/// The error names the place of the invalid key. Each value must already be in the range of its
/// key.
status validate(const job& j, const provenance& from, const policy_registry& policies, job_use use);

/// Whether each stage can run its sequence: one that needs more memory than the limit would wait
/// for ever. Does not check byte limits: the bytes of a microbatch are known only during the run.
status check_sequence_limits(const job& j, const std::vector<sequence>& sequences);

/// The checks of [dispatch].
status check_dispatch(const job& j, const provenance& from, const policy_registry& policies);
/// The checks of [cost] and pipeline.cuts, and those of an extension of the schema.
status check_costs(const job& j, const provenance& from);

}  // namespace rrfp::job

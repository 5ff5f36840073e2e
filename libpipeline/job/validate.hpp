/// What no single key can show: do the values fit each other, the disk and the policy?
#pragma once

#include <rrfp/job/job.hpp>

#include <rrfp/job/provenance.hpp>

namespace rrfp::job {

/// Microbatches times virtual stages, at most: it bounds what a schedule may take to check and
/// hold.
inline constexpr std::uint64_t tasks_max = std::uint64_t{1} << 20;

/// For messages: where the job was read from, or "the job" if a program made it.
std::string source_of(const job& j);

/// The error names the place of the key at fault. Each value is in its own range already.
status validate(const job& j, const provenance& from, job_use use);

}  // namespace rrfp::job

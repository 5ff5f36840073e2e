/// The keys that a study adds to jobs, and their checks.
#pragma once

#include <vector>

#include <rrfp/job/provenance.hpp>
#include <rrfp/job/schema.hpp>

namespace rrfp::study {

/// The keys that a study adds.
std::vector<job::key> keys();

/// Whether the values of these keys fit each other and the job.
status check(const job::job& j, const job::provenance& from);

}  // namespace rrfp::study

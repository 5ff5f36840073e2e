/// Profiles: files that hold the times of [cost].
#pragma once

#include <string>
#include <vector>

#include <rrfp/job/job.hpp>

namespace rrfp::job {

/// The times that the file sets. Error: names the file, and the line of a bad key.
result<std::vector<setting>> read_profile(const std::string& path);

}  // namespace rrfp::job

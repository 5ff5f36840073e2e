/// The entries of the checkpoint folder.
#pragma once

#include <string>

#include <rrfp/base/result.hpp>
#include <rrfp/core/ring_plan.hpp>

namespace rrfp::checkpoint {

/// None if `dir` does not exist.
result<listing> names_in(const std::string& dir);

std::string path_in(const std::string& dir, const std::string& name);

}  // namespace rrfp::checkpoint

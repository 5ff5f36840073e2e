/// The environment variables that cuBLAS and NCCL need so that equal work gives equal bits. Pure:
/// the environment is passed as a function.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <rrfp/base/result.hpp>

namespace rrfp::accelerator {

/// A name and a value.
using variable = std::pair<std::string, std::string>;

/// Returns the value of a variable, or null if it is unset; `std::getenv`, for example.
using environment = std::function<const char*(const char* name)>;

/// The variables to set, because the environment does not set them. cuBLAS: workspaces of fixed
/// sizes, without which products in several streams may differ. NCCL: one fixed algorithm and
/// protocol, which it otherwise chooses by size and load; any other fixed choice in the environment
/// is accepted. Error: a variable has a value that cannot be deterministic.
result<std::vector<variable>> missing_variables(const environment& variables);

}  // namespace rrfp::accelerator

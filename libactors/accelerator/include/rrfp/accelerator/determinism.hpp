/// What the libraries behind the door must be told by the environment for equal work to give equal
/// bits. Pure: the environment comes in as a function.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include <rrfp/schedule/result.hpp>

namespace rrfp::accelerator {

struct variable {
  std::string name;
  std::string value;

  bool operator==(const variable&) const = default;
};

/// The value of a variable; null if unset. `std::getenv`, for one.
using environment = std::function<const char*(const char* name)>;

/// Those to be set, because the environment is silent about them. cuBLAS: workspaces of fixed
/// sizes, without which products in several streams may differ. NCCL: one algorithm and protocol,
/// which it would else choose by size and load; another one that the environment names is as good.
/// Error: a variable is set to what cannot be deterministic.
result<std::vector<variable>> missing_variables(const environment& variables);

}  // namespace rrfp::accelerator

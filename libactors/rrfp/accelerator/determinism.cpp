#include <rrfp/accelerator/determinism.hpp>

#include <algorithm>
#include <array>
#include <string_view>

namespace rrfp::accelerator {

namespace {

struct rule {
  const char* name;
  const char* value;
  /// Other allowed values; empty: any value.
  std::vector<std::string_view> allowed;
};

const std::array<rule, 3>& rules() {
  static const std::array<rule, 3> all{
      rule{"CUBLAS_WORKSPACE_CONFIG", ":4096:8", {":4096:8", ":16:8"}},
      rule{"NCCL_ALGO", "Ring", {}},
      rule{"NCCL_PROTO", "Simple", {}},
  };
  return all;
}

}  // namespace

result<std::vector<variable>> missing_variables(const environment& variables) {
  std::vector<variable> missing;
  for (const auto& r : rules()) {
    const auto* const set = variables(r.name);
    if (set == nullptr || *set == '\0') {
      missing.push_back({r.name, r.value});
      continue;
    }
    if (r.allowed.empty()) continue;
    if (std::find(r.allowed.begin(), r.allowed.end(), set) != r.allowed.end()) continue;
    std::string allowed;
    for (const auto& a : r.allowed) allowed += (allowed.empty() ? "" : " or ") + std::string{a};
    return error{std::string{"the variable "} + r.name + ": device.deterministic expects " +
                 allowed + ", got " + set};
  }
  return missing;
}

}  // namespace rrfp::accelerator

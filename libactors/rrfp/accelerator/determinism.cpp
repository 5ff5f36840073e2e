#include <rrfp/accelerator/determinism.hpp>

#include <string_view>

namespace rrfp::accelerator {

result<std::vector<variable>> missing_variables(const environment& variables) {
  const auto value_of = [&](const std::string& name) -> std::string_view {
    const auto* const set = variables(name.c_str());
    return set == nullptr ? "" : set;
  };
  const std::string workspace = "CUBLAS_WORKSPACE_CONFIG";
  if (const auto set = value_of(workspace); !set.empty() && set != ":4096:8" && set != ":16:8")
    return error{"the variable " + workspace +
                 ": device.deterministic expects :4096:8 or :16:8, got " + std::string{set}};
  std::vector<variable> missing{
      {workspace, ":4096:8"}, {"NCCL_ALGO", "Ring"}, {"NCCL_PROTO", "Simple"}};
  std::erase_if(missing, [&](const variable& v) { return !value_of(v.first).empty(); });
  return missing;
}

}  // namespace rrfp::accelerator

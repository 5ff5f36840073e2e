/// Policies in shared libraries; see rrfp/policies/policy_library.hpp.
#include <dlfcn.h>

#include <stdexcept>
#include <string>
#include <utility>

#include <rrfp/core/check_policy.hpp>
#include <rrfp/policies/catalog.hpp>
#include <rrfp/policies/guarded_policy.hpp>
#include <rrfp/policies/policy_library.hpp>

namespace rrfp::policies {

namespace {

static_assert(sizeof(pipeline_shape) == 16 && sizeof(task) == 12 && sizeof(lane_order) == 8 &&
                  sizeof(stage_view) == 1,
              "raise policy_library_version, then correct these sizes");

constexpr const char* symbol = "rrfp_policy_library";

std::unique_ptr<policy> make_policy(const std::string& name, const policy_library& library,
                                    const pipeline_shape& shape, stage_id stage) {
  constexpr auto function = "the function of RRFP_POLICY_LIBRARY";
  auto own = calling(name, function, [&] { return library.make(shape, stage); });
  if (own == nullptr)
    throw std::runtime_error("policy '" + name + "': " + function + " returned null");
  return guarded(name, std::move(own));
}

/// Checks the policies of all stages. The lanes are checked for mode ready: in mode in-order a
/// simulation makes sequences of the policies.
status check(const policy_set& set, const pipeline_shape& shape) {
  for (std::uint32_t s = 0; s < shape.stages; ++s) {
    const auto fits = check_policy(*set.make(stage_id{s}), shape, dispatch_mode::ready);
    if (!fits) return within("stage " + std::to_string(s), fits.failure());
  }
  return success();
}

/// Loads the library for the rest of the process: objects of its classes may live that long.
result<const policy_library*> open_library(const std::string& path) {
  if (path.empty()) return error{"lib: expected a file, got none"};
  // Without a slash dlopen() would search the folders of the system.
  const auto file = path.find('/') == std::string::npos ? "./" + path : path;
  const auto refused = [&] {
    std::string why = ::dlerror();
    if (why.starts_with(file + ": ")) why.erase(0, file.size() + 2);
    return error{path + ": cannot be loaded as a library: " + why};
  };
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return refused();
  const auto* const library = static_cast<const policy_library*>(::dlsym(handle, symbol));
  if (library == nullptr)
    return error{path + ": expected a library with RRFP_POLICY_LIBRARY(function), found no " +
                 symbol};
  if (library->version != policy_library_version)
    return error{path + ": expected version " + std::to_string(policy_library_version) +
                 " of the interface of policies, got " + std::to_string(library->version) +
                 ": build it with the headers of this rrfp"};
  return library;
}

}  // namespace

result<std::shared_ptr<const policy_set>> from_library(std::string_view name, std::string_view path,
                                                       const pipeline_shape& shape) {
  const auto library = open_library(std::string{path});
  if (!library) return library.failure();
  auto set = std::make_shared<const policy_set>(
      name, [name = std::string{name}, library = *library, shape](stage_id stage) {
        return make_policy(name, *library, shape, stage);
      });
  try {
    if (auto fits = check(*set, shape); !fits) return fits.failure();
  } catch (const std::exception& e) {
    return error{e.what()};
  }
  return set;
}

}  // namespace rrfp::policies

/// A policy of your own in a shared library, which `dispatch.policy = "lib:FILE.so"` loads into
/// every program of rrfp. The library has a function that makes the policy of a stage, and names it
/// once:
///
///   std::unique_ptr<rrfp::policy> make(const rrfp::pipeline_shape& shape, rrfp::stage_id stage);
///   RRFP_POLICY_LIBRARY(make);
///
/// A program calls the function for each stage, several times and from several threads; each
/// policy object belongs to one thread. The programs check the policies before a run
/// (rules: rrfp/core/policy.hpp). What a policy throws ends the run with an error that names the
/// function. The program never unloads the library.
#pragma once

#include <cstdint>
#include <memory>

#include <rrfp/core/placement.hpp>
#include <rrfp/core/policy.hpp>

namespace rrfp::policies {

/// The version of the classes that a library shares with the program: policy, pipeline_shape, task,
/// lane_order and stage_view. Raise it whenever one of them changes.
inline constexpr std::uint32_t policy_library_version = 1;

/// What a library exports as `rrfp_policy_library`. The version comes first in every version.
struct policy_library {
  std::uint32_t version;
  std::unique_ptr<policy> (*make)(const pipeline_shape& shape, stage_id stage);
};

}  // namespace rrfp::policies

/// Exports `make_policy`, a function as policy_library::make. Use it once, at namespace scope.
#define RRFP_POLICY_LIBRARY(make_policy)                      \
  extern "C" {                                                \
  extern __attribute__((visibility("default")))               \
  const ::rrfp::policies::policy_library rrfp_policy_library; \
  const ::rrfp::policies::policy_library rrfp_policy_library{ \
      ::rrfp::policies::policy_library_version, make_policy}; \
  }                                                           \
  static_assert(true)

#include "hints.hpp"

#include <rrfp/base/check.hpp>
#include <rrfp/job/plan.hpp>
#include <rrfp/policies/registry.hpp>

#include "distorted.hpp"

namespace rrfp::experiment {

namespace {

/// Added to the seed under which a stale order is recorded; no seed of an experiment is that large.
constexpr std::uint64_t stale_seed_offset = std::uint64_t{1} << 40;

/// The order that the policy gives by readiness in the first step of `j`.
result<std::shared_ptr<const policy_set>> recorded(job::job j) {
  j.dispatch.mode = dispatch_mode::ready;
  study::options_of(j).dispatch.messages = study::messages_kind::asynchronous;
  const auto simulation = plan::simulation_of(j, policies::registry(), 1);
  if (!simulation) return simulation.failure();
  auto orders = simulate::nominal_sequences(*simulation, simulation->costs);
  if (!orders) return orders.failure();
  return std::make_shared<const policy_set>(j.dispatch.policy, std::move(*orders));
}

}  // namespace

const std::vector<policy_info>& cell_policies::known() const {
  return policies::registry().known();
}

result<std::shared_ptr<const policy_set>> cell_policies::make(std::string_view name,
                                                              const pipeline_shape& shape) const {
  auto policies = policies::registry().make(name, shape);
  if (!policies) return policies;
  auto j = cell_.job;
  j.dispatch.policy = name;
  const auto seed = j.jitter.seed;
  switch (cell_.hint) {
    case hint_quality::own: return policies;
    case hint_quality::reversed: return make_reversed(*policies);
    case hint_quality::shuffled: return make_shuffled(*policies, seed);
    case hint_quality::calm:
      j.jitter = {};
      j.jitter.seed = seed;
      j.delays = {};
      return recorded(std::move(j));
    case hint_quality::stale:
      j.jitter.seed = seed + stale_seed_offset;
      return recorded(std::move(j));
  }
  RRFP_CHECK(false, "unknown hint");
}

}  // namespace rrfp::experiment

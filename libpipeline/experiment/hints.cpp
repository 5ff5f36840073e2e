#include <rrfp/experiment/hints.hpp>

#include <rrfp/base/check.hpp>
#include <rrfp/experiment/limits.hpp>
#include <rrfp/policies/distorted.hpp>

namespace rrfp::experiment {

namespace {

/// Added to the seed under which a stale order is recorded; no seed of an experiment is that large.
constexpr std::uint64_t stale_seed_offset = std::uint64_t{1} << 40;

/// The order that the policy gives under the conditions, images and seed of cell `c`.
result<std::shared_ptr<const policies::policy_set>> recorded(
    cell c, const std::shared_ptr<const policies::policy_set>& policies) {
  c.run.mode = run_mode::ready;
  c.run.notice_ms = 0;
  const auto model = cell_model::make(c);
  if (!model) return model.failure();
  const step_costs costs{*model, step_id{0}, replica_id{0}};
  auto orders = simulate::nominal_sequences(plan_of(*model, policies, costs), costs);
  if (!orders) return orders.failure();
  return policies::make_fixed_policy_set(c.run.policy, std::move(*orders));
}

}  // namespace

result<std::shared_ptr<const policies::policy_set>> hints_of(const cell_model& model) {
  const auto& c = model.source();
  auto policies = policies::make_policy_set(c.run.policy, model.shape());
  if (!policies) return policies.failure();
  switch (c.run.hint) {
    case hint_quality::own: return policies;
    case hint_quality::reversed: return policies::make_reversed(*policies);
    case hint_quality::shuffled: return policies::make_shuffled(*policies, c.seed);
    case hint_quality::calm: {
      auto undisturbed = c;
      undisturbed.weather.conditions = {};
      return recorded(std::move(undisturbed), *policies);
    }
    case hint_quality::stale: {
      auto earlier = c;
      earlier.seed += stale_seed_offset;
      return recorded(std::move(earlier), *policies);
    }
  }
  RRFP_CHECK(false, "unknown hint");
}

simulate::plan plan_of(const cell_model& model,
                       std::shared_ptr<const policies::policy_set> policies,
                       const step_costs& costs) {
  const auto& run = model.source().run;
  simulate::plan p;
  p.shape = model.shape();
  p.mode = run.mode == run_mode::ready ? dispatch_mode::ready : dispatch_mode::in_order;
  if (run.mode == run_mode::blocking) p.messages = simulate::transport::blocking;
  p.make_policy = [policies = std::move(policies)](stage_id s) { return policies->make(s); };
  for (std::uint32_t s = 0; s < p.shape.stages; ++s)
    p.limits.push_back(limit_of(run, p.shape, stage_id{s}));
  p.slot_bytes = [&costs](stage_id s, microbatch_id mb) { return costs.activation_bytes(s, mb); };
  return p;
}

}  // namespace rrfp::experiment

#include <rrfp/plan/plan.hpp>

#include <utility>

namespace rrfp::plan {

namespace {

/// The costs of [cost] alone.
simulate::stage_costs_options costs_of(const job::job& j, const pipeline_shape& shape) {
  simulate::stage_costs_options options;
  options.durations.clear();
  for (std::uint32_t v = 0; v < shape.virtual_stages(); ++v) {
    const virtual_stage_id vs{v};
    options.durations.push_back({job::cost_at(j.cost.forward_ms, shape, vs),
                                 job::cost_at(j.cost.backward_ms, shape, vs),
                                 job::cost_at(j.cost.weight_ms, shape, vs),
                                 {}});
  }
  options.activation_ms = options.gradient_ms = j.cost.link_ms;
  return options;
}

simulate::stage_costs made(const pipeline_shape& shape, simulate::stage_costs_options options) {
  auto costs = simulate::stage_costs::make(shape, std::move(options));
  RRFP_CHECK(costs.ok(), "the costs of a loaded job are valid");
  return std::move(*costs);
}

}  // namespace

result<simulate::stage_costs> expected_costs(const job::job& j) {
  const auto shape = job::effective_shape(j);
  auto options = costs_of(j, shape);
  options.jitter = j.jitter;
  if (!j.delays.file.empty()) {
    auto delays = simulate::given_delays::read(j.delays.file, shape);
    if (!delays) return job::blame(j, "jitter.delays", delays.message());
    options.delays = std::make_shared<const simulate::given_delays>(std::move(*delays));
  }
  return made(shape, std::move(options));
}

simulate::stage_costs nominal_costs(const job::job& j) {
  const auto shape = job::effective_shape(j);
  return made(shape, costs_of(j, shape));
}

result<dispatch_plan> make_dispatch_plan(const job::job& j) {
  dispatch_plan p;
  p.shape = job::effective_shape(j);
  p.mode = j.dispatch.mode;
  p.lookahead = j.dispatch.lookahead;
  for (std::uint32_t s = 0; s < p.shape.stages; ++s)
    p.limits.push_back(job::effective_limit(j, stage_id{s}));
  auto policies = policies::make_policy_set(j.dispatch.policy, p.shape);
  if (!policies) return policies.failure();
  p.policies = std::move(*policies);
  if (p.mode == dispatch_mode::ready || p.policies->sequences() != nullptr) return p;

  auto rounds = simulation_of(p, 1);
  rounds.mode = dispatch_mode::ready;
  auto order = simulate::nominal_sequences(rounds, nominal_costs(j));
  if (!order) return order.failure();
  p.policies = policies::make_fixed_policy_set(j.dispatch.policy, std::move(*order));
  return p;
}

simulate::plan simulation_of(const dispatch_plan& p, std::uint64_t steps) {
  simulate::plan simulation;
  simulation.shape = p.shape;
  simulation.mode = p.mode;
  simulation.lookahead = p.lookahead;
  simulation.limits = p.limits;
  simulation.make_policy = [policies = p.policies](stage_id s) { return policies->make(s); };
  simulation.steps = steps;
  return simulation;
}

}  // namespace rrfp::plan

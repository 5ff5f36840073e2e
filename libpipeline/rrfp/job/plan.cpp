#include <rrfp/job/plan.hpp>

#include <string>
#include <utility>

#include <rrfp/simulate/last_steps.hpp>

#include "schema.hpp"
#include "validate.hpp"

namespace rrfp::job {

namespace {

/// The costs of [cost] alone.
simulate::stage_costs_options costs_of(const job& j, replica_id replica) {
  simulate::stage_costs_options options;
  options.ranks = j.pipeline.tp;
  options.admit = j.dispatch.admit;
  if (has_other_costs(j)) {
    options.by_microbatch = schema_of(j).more()->costs(j, replica);
    return options;
  }
  options.durations = times_of_parts(j);
  options.activation_ms = options.gradient_ms = j.cost.link_ms;
  return options;
}

simulate::microbatch_bytes bytes_of(const simulate::stage_costs& costs) {
  return [costs](step_id step, stage_id s, microbatch_id mb) {
    return costs.activation_bytes(step, s, mb);
  };
}

simulate::plan without_rule(const job& j) {
  simulate::plan p;
  p.shape = effective_shape(j);
  p.lookahead = j.dispatch.lookahead;
  for (std::uint32_t s = 0; s < p.shape.stages; ++s)
    p.limits.push_back(effective_limit(j, stage_id{s}));
  return p;
}

result<std::shared_ptr<const policy_set>> policies_of(const job& j,
                                                      const policy_registry& registry) {
  auto policies = registry.make(j.dispatch.policy, effective_shape(j));
  if (!policies || j.dispatch.mode == dispatch_mode::ready || (*policies)->sequences() != nullptr)
    return policies;
  auto rounds = without_rule(j);
  rounds.rule.make_policy = [made = *policies](const pipeline_shape&, stage_id s) {
    return made->make(s);
  };
  rounds.rule.weight_pieces = j.dispatch.weight_pieces.value_or(0);
  const auto costs = nominal_costs(j);
  if (costs.has_bytes()) rounds.slot_bytes = bytes_of(costs);
  auto order = simulate::nominal_sequences(rounds, costs);
  if (!order) return order.failure();
  return std::make_shared<const policy_set>(j.dispatch.policy, std::move(*order));
}

status check_memory(const job& j, const policy_set& policies) {
  if (j.dispatch.mode == dispatch_mode::ready) return success();
  const auto fits = check_sequence_limits(j, *policies.sequences());
  return fits ? success() : within("dispatch.slots", fits.failure());
}

/// The policies of the job, also for steps with other numbers of microbatches.
policy_factory factory_of(const job& j, const policy_registry& registry,
                          std::shared_ptr<const policy_set> planned) {
  using sets = simulate::last_steps<std::shared_ptr<const policy_set>>;
  return [j, &registry, planned, others = std::make_shared<sets>()](const pipeline_shape& shape,
                                                                    stage_id stage) {
    if (shape.microbatches == j.pipeline.microbatches) return planned->make(stage);
    const auto set = others->at(shape.microbatches, [&] {
      auto with_others = j;
      with_others.pipeline.microbatches = shape.microbatches;
      auto made = policies_of(with_others, registry);
      const auto fits = made ? check_memory(with_others, **made) : made.failure();
      if (!fits)
        throw undefined_policy("a step of " + std::to_string(shape.microbatches) +
                               " microbatches: " + fits.message());
      return *made;
    });
    return (*set)->make(stage);
  };
}

}  // namespace

result<simulate::stage_costs> expected_costs(const job& j, replica_id replica) {
  const auto shape = effective_shape(j);
  auto options = costs_of(j, replica);
  options.jitter = j.jitter;
  options.jitter.seed += std::uint64_t{replica.value()} << 32;
  if (!j.delays.file.empty()) {
    auto delays = simulate::duration_table::read(j.delays.file, shape);
    if (!delays) return blame(j, "jitter.delays", delays.message());
    options.delays = std::make_shared<const simulate::given_delays>(std::move(*delays));
  }
  return simulate::stage_costs(shape, std::move(options));
}

simulate::stage_costs nominal_costs(const job& j) {
  const auto shape = effective_shape(j);
  return simulate::stage_costs(shape, costs_of(j, replica_id{0}));
}

result<dispatch_plan> make_dispatch_plan(const job& j, const policy_registry& registry) {
  dispatch_plan p{without_rule(j), nullptr};
  if (const auto* more = schema_of(j).more()) p.messages = more->messages(j);
  if (j.jitter.ranks == simulate::rank_delays::apart) p.ranks = j.pipeline.tp;
  auto policies = policies_of(j, registry);
  if (!policies) return blame(j, "dispatch.policy", policies.message());
  p.policies = std::move(*policies);
  p.rule = {.make_policy = factory_of(j, registry, p.policies),
            .mode = j.dispatch.mode,
            .weight_pieces = j.dispatch.weight_pieces.value_or(0),
            .early_forwards = j.dispatch.early_forwards};
  return p;
}

simulate::plan simulation_of(const dispatch_plan& p, const simulate::stage_costs& costs,
                             std::uint64_t steps) {
  simulate::plan simulation = p;
  simulation.steps = steps;
  if (costs.has_bytes()) simulation.slot_bytes = bytes_of(costs);
  return simulation;
}

result<job_simulation> simulation_of(const job& j, const policy_registry& policies,
                                     std::uint64_t steps, replica_id replica,
                                     simulate::microbatch_bytes slot_bytes) {
  auto p = make_dispatch_plan(j, policies);
  if (!p) return p.failure();
  auto costs = expected_costs(j, replica);
  if (!costs) return costs.failure();
  static_cast<simulate::plan&>(*p) = simulation_of(*p, *costs, steps);
  if (slot_bytes) p->slot_bytes = std::move(slot_bytes);
  if (j.dispatch.slot_bytes != 0 && !p->slot_bytes)
    return blame(j, "dispatch.slot_bytes",
                 "expected 0, or cost.preset, which determines the bytes of a microbatch");
  return job_simulation{*std::move(p), *std::move(costs)};
}

}  // namespace rrfp::job

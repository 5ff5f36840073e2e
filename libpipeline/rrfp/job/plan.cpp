#include <rrfp/job/plan.hpp>

#include <string>
#include <utility>

#include <rrfp/base/check.hpp>
#include <rrfp/job/workload.hpp>
#include <rrfp/simulate/last_steps.hpp>
#include <rrfp/workload/loads.hpp>

#include "validate.hpp"

namespace rrfp::plan {

namespace {

/// The costs of cost.preset; microbatches are numbered over all replicas.
class preset_costs final : public simulate::microbatch_costs {
 public:
  preset_costs(const job::job& j, std::shared_ptr<const workload::pipeline_cost> model,
               replica_id replica)
      : model_(std::move(model)),
        loads_(model_->described(), j.cost.samples, j.images, j.texts, j.experts, j.jitter.seed),
        tells_shapes_(j.cost.shape_messages && loads_.shapes_vary() &&
                      j.dispatch.messages == job::messages_kind::blocking),
        microbatches_(j.pipeline.microbatches),
        first_(std::uint64_t{replica.value()} * microbatches_) {
    for (std::uint32_t s = 0; s < j.pipeline.stages; ++s)
      speeds_.push_back(job::speed_of(j, stage_id{s}));
  }

  double task_ms(step_id step, stage_id stage, task_kind kind, microbatch_id mb) const override {
    const auto all = at(step);
    const auto& cost = (*all)[mb.value()].stages[stage.value()];
    const auto ms = kind == task_kind::forward    ? cost.forward_ms
                    : kind == task_kind::backward ? cost.backward_ms
                                                  : cost.weight_ms;
    return ms / speeds_[stage.value()];
  }
  double message_ms(step_id step, stage_id lower, microbatch_id mb) const override {
    return (*at(step))[mb.value()].messages_ms[lower.value()];
  }
  std::optional<double> shape_ms(stage_id lower) const override {
    return tells_shapes_ ? std::optional{model_->empty_message_ms(lower)} : std::nullopt;
  }
  std::uint64_t activation_bytes(step_id step, stage_id stage, microbatch_id mb) const override {
    return static_cast<std::uint64_t>(
        (*at(step))[mb.value()].stages[stage.value()].activation_bytes);
  }
  std::uint64_t message_bytes(step_id step, stage_id lower, microbatch_id mb) const override {
    return static_cast<std::uint64_t>(
        model_->message_bytes(lower, loads_.of(step, first_ + mb.value())));
  }

 private:
  struct costs_of_microbatch {
    std::vector<workload::part_cost> stages;
    std::vector<double> messages_ms;  ///< by lower stage
  };
  using costs_of_step = std::vector<costs_of_microbatch>;

  costs_of_microbatch costs_with(const workload::load& load) const {
    costs_of_microbatch made;
    for (std::uint32_t s = 0; s < speeds_.size(); ++s) {
      made.stages.push_back(model_->stage(stage_id{s}, load));
      if (s + 1 < speeds_.size()) made.messages_ms.push_back(model_->message_ms(stage_id{s}, load));
    }
    return made;
  }

  std::shared_ptr<const costs_of_step> at(step_id step) const {
    return steps_.at(step.value(), [&] {
      costs_of_step made;
      for (std::uint32_t i = 0; i < microbatches_; ++i)
        made.push_back(costs_with(loads_.of(step, first_ + i)));
      return made;
    });
  }

  const std::shared_ptr<const workload::pipeline_cost> model_;
  const workload::load_source loads_;
  const bool tells_shapes_;
  const std::uint32_t microbatches_;
  const std::uint64_t first_;
  std::vector<double> speeds_;  ///< by stage
  mutable simulate::last_steps<costs_of_step> steps_;
};

/// The costs of [cost] alone.
simulate::stage_costs_options costs_of(const job::job& j, replica_id replica) {
  simulate::stage_costs_options options;
  options.ranks = j.pipeline.tp;
  options.admit = j.dispatch.admit;
  if (!j.cost.preset.empty()) {
    auto model = job::workload_of(j);
    RRFP_CHECK(model.ok(), "the preset of a loaded job fits its stages");
    options.by_microbatch = std::make_shared<const preset_costs>(j, std::move(*model), replica);
    return options;
  }
  options.durations.clear();
  for (const auto& t : job::times_of_parts(j))
    options.durations.push_back({t.forward_ms, t.backward_ms, t.weight_ms, {}});
  options.activation_ms = options.gradient_ms = j.cost.link_ms;
  return options;
}

std::function<std::uint64_t(step_id, stage_id, microbatch_id)> bytes_of(
    const simulate::stage_costs& costs) {
  return [costs](step_id step, stage_id s, microbatch_id mb) {
    return costs.activation_bytes(step, s, mb);
  };
}

result<std::shared_ptr<const policy_set>> policies_of(const job::job& j,
                                                      const policy_registry& registry) {
  const auto shape = job::effective_shape(j);
  auto policies = registry.make(j.dispatch.policy, shape);
  if (!policies || j.dispatch.mode == dispatch_mode::ready || (*policies)->sequences() != nullptr)
    return policies;
  simulate::plan rounds;
  rounds.shape = shape;
  rounds.rule.make_policy = [made = *policies](const pipeline_shape&, stage_id s) {
    return made->make(s);
  };
  rounds.rule.weight_pieces = j.dispatch.weight_pieces.value_or(0);
  rounds.lookahead = j.dispatch.lookahead;
  for (std::uint32_t s = 0; s < shape.stages; ++s)
    rounds.limits.push_back(job::effective_limit(j, stage_id{s}));
  const auto costs = nominal_costs(j);
  if (costs.has_bytes()) rounds.slot_bytes = bytes_of(costs);
  auto order = simulate::nominal_sequences(rounds, costs);
  if (!order) return order.failure();
  return make_fixed_policy_set(j.dispatch.policy, std::move(*order));
}

status check_memory(const job::job& j, const policy_set& policies) {
  if (j.dispatch.mode == dispatch_mode::ready) return success();
  const auto fits = job::check_sequence_limits(j, *policies.sequences());
  return fits ? success() : within("dispatch.slots", fits.failure());
}

/// The policies of the job, also for steps with other numbers of microbatches.
policy_factory factory_of(const job::job& j, const policy_registry& registry,
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

result<simulate::stage_costs> expected_costs(const job::job& j, replica_id replica) {
  const auto shape = job::effective_shape(j);
  auto options = costs_of(j, replica);
  options.jitter = j.jitter;
  options.jitter.seed += std::uint64_t{replica.value()} << 32;
  if (!j.delays.file.empty()) {
    auto delays = simulate::duration_table::read(j.delays.file, shape);
    if (!delays) return job::blame(j, "jitter.delays", delays.message());
    options.delays = std::make_shared<const simulate::given_delays>(std::move(*delays));
  }
  return simulate::stage_costs(shape, std::move(options));
}

simulate::stage_costs nominal_costs(const job::job& j) {
  const auto shape = job::effective_shape(j);
  return simulate::stage_costs(shape, costs_of(j, replica_id{0}));
}

result<dispatch_plan> make_dispatch_plan(const job::job& j, const policy_registry& registry) {
  dispatch_plan p;
  p.shape = job::effective_shape(j);
  p.blocking_messages = j.dispatch.messages == job::messages_kind::blocking;
  p.lookahead = j.dispatch.lookahead;
  for (std::uint32_t s = 0; s < p.shape.stages; ++s)
    p.limits.push_back(job::effective_limit(j, stage_id{s}));
  if (j.jitter.ranks == weather::rank_delays::apart) p.ranks_apart = j.pipeline.tp;
  auto policies = policies_of(j, registry);
  if (!policies) return policies.failure();
  p.policies = std::move(*policies);
  p.rule = {.make_policy = factory_of(j, registry, p.policies),
            .mode = j.dispatch.mode,
            .weight_pieces = j.dispatch.weight_pieces.value_or(0),
            .early_forwards = j.dispatch.early_forwards};
  return p;
}

simulate::plan simulation_of(const dispatch_plan& p, std::uint64_t steps) {
  simulate::plan simulation;
  simulation.shape = p.shape;
  simulation.rule = p.rule;
  if (p.blocking_messages) simulation.messages = simulate::transport::blocking;
  simulation.lookahead = p.lookahead;
  simulation.limits = p.limits;
  simulation.steps = steps;
  simulation.ranks = p.ranks_apart;
  return simulation;
}

simulate::plan simulation_of(const dispatch_plan& p, const simulate::stage_costs& costs,
                             std::uint64_t steps) {
  auto simulation = simulation_of(p, steps);
  if (costs.has_bytes()) simulation.slot_bytes = bytes_of(costs);
  return simulation;
}

}  // namespace rrfp::plan

#include <rrfp/wall_clock/engine.hpp>

#include <algorithm>
#include <future>
#include <vector>

#include <rrfp/actors/session.hpp>
#include <rrfp/base/units.hpp>
#include <rrfp/experiment/hints.hpp>
#include <rrfp/experiment/limits.hpp>

namespace rrfp::wall_clock {

namespace {

using experiment::cell;
using experiment::cell_model;
using experiment::outcome;
using experiment::run_mode;
using experiment::step_costs;

/// Messages within a process are handed over, not copied; their size has no effect.
constexpr std::int64_t message_bytes = 1;
/// Longer than any task or message of a reasonable experiment.
constexpr double hang_timeout_s = 600;

struct replica_result {
  actors::run_result run;
  std::vector<double> step_ms;
};

/// The costs of all steps of one replica.
using costs_by_step = std::vector<step_costs>;

/// In the in-order modes a schedule may stall; the simulator finds that out at once.
status check_ends(const cell_model& model,
                  const std::shared_ptr<const policies::policy_set>& policies,
                  const costs_by_step& costs) {
  if (model.source().run.mode == run_mode::ready) return success();
  for (const auto& step : costs)
    if (auto ran = simulate::run(plan_of(model, policies, step), step); !ran) return ran.failure();
  return success();
}

actors::session_setup setup_of(const cell_model& model,
                               const std::shared_ptr<const policies::policy_set>& policies,
                               const std::shared_ptr<const costs_by_step>& costs) {
  const auto& c = model.source();
  const auto scale = c.time_scale;
  actors::session_setup setup;
  setup.shape = model.shape();
  setup.ranks = c.workload.options.tp;
  setup.mode = c.run.mode == run_mode::ready ? dispatch_mode::ready : dispatch_mode::in_order;
  setup.blocking_messages = c.run.mode == run_mode::blocking;
  for (std::uint32_t s = 0; s < setup.shape.stages; ++s)
    setup.limits.push_back(limit_of(c.run, setup.shape, stage_id{s}));
  setup.make_policy = [policies](stage_id s) { return policies->make(s); };
  setup.slot_bytes = [costs](step_id step, stage_id s, microbatch_id mb) {
    return (*costs)[step.value()].activation_bytes(s, mb);
  };
  setup.train.steps = c.steps;
  // The collectives of a task synchronize its ranks: each takes as long as the slowest.
  setup.emulated = actors::emulated_device{
      [costs, scale](step_id step, stage_id s, rank_id, const task& t) {
        return scale * milliseconds((*costs)[step.value()].compute(step, s, t));
      },
      message_bytes, 0};
  setup.delays.link = [costs, scale](step_id step, virtual_stage_id to, const task& t) {
    return scale * milliseconds((*costs)[step.value()].travel(to, t));
  };
  const auto& conditions = c.weather.conditions;
  if (conditions.loss_probability > 0 || conditions.double_probability > 0) {
    setup.delays.fate = [costs](step_id step, virtual_stage_id to, const task& t,
                                std::uint32_t attempt) {
      const auto delivery = (*costs)[step.value()].delivery_of(to, t);
      return actors::attempt_fate{attempt < delivery.losses,
                                  attempt == delivery.losses && delivery.duplicated};
    };
    setup.delays.resend_ms = scale * conditions.resend_ms;
  }
  setup.hang_timeout_s = hang_timeout_s;
  return setup;
}

result<replica_result> run_replica(actors::session_setup setup) {
  replica_result made;
  setup.on_step = [&](const actors::step_summary& s) { made.step_ms.push_back(s.step_ms); };
  auto session = actors::session::open(std::move(setup));
  if (!session) return session.failure();
  made.run = (*session)->run();
  if (made.run.how != actors::ending::done) return error{made.run.message};
  return made;
}

/// Device time of a cell, in modelled milliseconds.
struct times {
  double all = 0;
  double busy = 0;
  double blocked = 0;
};

void add(outcome& o, times& t, const replica_result& ran, const cell_model& model) {
  const auto& c = model.source();
  const auto& stages = ran.run.summary.stages;
  for (std::uint32_t s = 0; s < stages.size(); ++s) {
    const auto& stage = stages[s];
    t.busy += stage.busy_ms / c.time_scale;
    t.blocked += stage.blocked_ms / c.time_scale;
    o.launch_gap_ms = std::max(o.launch_gap_ms,
                               stage.launch_gap_ms / c.time_scale / static_cast<double>(c.steps));
    const auto bytes = stage.memory.bytes_peak;
    o.slots_peak = std::max(o.slots_peak, stage.memory.slots_peak);
    o.activation_bytes_peak = std::max(o.activation_bytes_peak, bytes);
    o.held_bytes_peak = std::max(o.held_bytes_peak, bytes + model.static_bytes(stage_id{s}));
  }
}

class wall_clock_engine final : public experiment::engine {
 public:
  experiment::engine_kind kind() const override { return experiment::engine_kind::wall_clock; }

  result<outcome> run(const cell& c) const override {
    const auto model = cell_model::make(c);
    if (!model) return model.failure();
    const auto policies = hints_of(*model);
    if (!policies) return policies.failure();

    std::vector<std::future<result<replica_result>>> replicas;
    for (std::uint32_t r = 0; r < c.workload.options.replicas; ++r) {
      const auto costs = std::make_shared<costs_by_step>();
      for (std::uint64_t step = 0; step < c.steps; ++step)
        costs->emplace_back(*model, step_id{step}, replica_id{r});
      if (auto ends = check_ends(*model, *policies, *costs); !ends) return ends.failure();
      replicas.push_back(
          std::async(std::launch::async, run_replica, setup_of(*model, *policies, costs)));
    }
    outcome o;
    times t;
    o.step_ms.assign(c.steps, 0);
    for (auto& replica : replicas) {
      const auto ran = replica.get();
      if (!ran) return ran.failure();
      for (std::uint64_t step = 0; step < c.steps; ++step)
        o.step_ms[step] = std::max(o.step_ms[step], ran->step_ms[step] / c.time_scale);
      add(o, t, *ran, *model);
    }
    for (auto& ms : o.step_ms) {
      ms += model->gradient_exchange_ms();
      t.all += ms * c.workload.options.stages * c.workload.options.replicas;
    }
    if (t.all > 0) {
      o.idle = 1 - t.busy / t.all;
      o.blocked = t.blocked / t.all;
    }
    return o;
  }
};

}  // namespace

std::unique_ptr<experiment::engine> make_engine() { return std::make_unique<wall_clock_engine>(); }

}  // namespace rrfp::wall_clock

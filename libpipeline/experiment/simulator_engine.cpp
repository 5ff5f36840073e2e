#include <algorithm>

#include <rrfp/experiment/cell_costs.hpp>
#include <rrfp/policies/registry.hpp>
#include <rrfp/schedule/check.hpp>

#include "limits.hpp"

namespace rrfp::experiment {

namespace {

double milliseconds(simulate::nanoseconds t) { return static_cast<double>(t) / 1e6; }

/// Device time of a cell, in milliseconds.
struct times {
  double all = 0;
  double busy = 0;
  double blocked = 0;
};

class simulator_engine final : public engine {
 public:
  engine_kind kind() const override { return engine_kind::simulator; }

  result<outcome> run(const cell& c) const override {
    const auto model = cell_model::make(c);
    if (!model) return model.failure();
    const auto policies = policies::make_policy_set(c.run.policy, model->shape());
    if (!policies) return policies.failure();
    outcome o;
    times t;
    for (std::uint64_t step = 0; step < c.steps; ++step) {
      double slowest = 0;
      for (std::uint32_t r = 0; r < c.workload.is.replicas; ++r) {
        const step_costs costs{*model, step_id{step}, replica_id{r}};
        const auto ran = simulate::run(plan_of(*model, *policies, costs), costs);
        if (!ran) return ran.failure();
        slowest = std::max(slowest, milliseconds(ran->makespan));
        add(o, t, *ran, *model);
      }
      o.step_ms.push_back(slowest + model->gradient_exchange_ms());
      t.all += o.step_ms.back() * c.workload.is.stages * c.workload.is.replicas;
    }
    if (t.all > 0) {
      o.idle = 1 - t.busy / t.all;
      o.blocked = t.blocked / t.all;
    }
    return o;
  }

 private:
  static simulate::plan plan_of(const cell_model& model,
                                const std::shared_ptr<const policies::policy_set>& policies,
                                const step_costs& costs) {
    const auto& run = model.of().run;
    simulate::plan p;
    p.shape = model.shape();
    p.mode = run.mode == run_mode::ready ? dispatch_mode::ready : dispatch_mode::in_order;
    if (run.mode == run_mode::blocking) p.messages = simulate::transport::blocking;
    p.make_policy = [policies](stage_id s) { return policies->make(s); };
    for (std::uint32_t s = 0; s < p.shape.stages; ++s)
      p.limits.push_back(limit_of(run, p.shape, stage_id{s}));
    p.slot_bytes = [&costs](stage_id s, microbatch_id mb) { return costs.activation_bytes(s, mb); };
    return p;
  }

  static void add(outcome& o, times& t, const simulate::report& ran, const cell_model& model) {
    for (std::uint32_t s = 0; s < ran.stages.size(); ++s) {
      const auto& stage = ran.stages[s];
      t.busy += milliseconds(stage.busy);
      t.blocked += milliseconds(stage.blocked);
      const auto bytes = stage.memory.bytes_peak;
      o.slots_peak = std::max(o.slots_peak, stage.memory.slots_peak);
      o.activation_bytes_peak = std::max(o.activation_bytes_peak, bytes);
      o.held_bytes_peak = std::max(o.held_bytes_peak, bytes + model.static_bytes(stage_id{s}));
    }
  }
};

}  // namespace

std::unique_ptr<engine> make_engine(engine_kind kind) {
  switch (kind) {
    case engine_kind::simulator: return std::make_unique<simulator_engine>();
  }
  RRFP_CHECK(false, "unknown engine");
}

}  // namespace rrfp::experiment

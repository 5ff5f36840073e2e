#include <algorithm>

#include <rrfp/base/units.hpp>
#include <rrfp/experiment/hints.hpp>

namespace rrfp::experiment {

namespace {

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
    const auto policies = hints_of(*model);
    if (!policies) return policies.failure();
    outcome o;
    times t;
    for (std::uint64_t step = 0; step < c.steps; ++step) {
      double slowest = 0;
      for (std::uint32_t r = 0; r < c.workload.options.replicas; ++r) {
        const step_costs costs{*model, step_id{step}, replica_id{r}};
        const auto ran = simulate::run(plan_of(*model, *policies, costs), costs);
        if (!ran) return ran.failure();
        slowest = std::max(slowest, milliseconds(ran->makespan));
        add(o, t, *ran, *model);
      }
      o.step_ms.push_back(slowest + model->gradient_exchange_ms());
      t.all += o.step_ms.back() * c.workload.options.stages * c.workload.options.replicas;
    }
    if (t.all > 0) {
      o.idle = 1 - t.busy / t.all;
      o.blocked = t.blocked / t.all;
    }
    return o;
  }

 private:
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

std::unique_ptr<engine> make_simulator_engine() { return std::make_unique<simulator_engine>(); }

}  // namespace rrfp::experiment

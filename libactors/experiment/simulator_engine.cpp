#include <rrfp/base/units.hpp>
#include <rrfp/experiment/hints.hpp>
#include <rrfp/plan/plan.hpp>
#include <rrfp/simulate/simulator.hpp>

namespace rrfp::experiment {

namespace {

simulate::plan simulation_of(const cell& c, const plan::dispatch_plan& dispatch,
                             const simulate::stage_costs& costs) {
  auto simulation = plan::simulation_of(dispatch, costs, c.job.train.steps);
  if (c.agreement == rank_agreement::arrivals) return simulation;
  simulation.agreement = c.agreement;
  simulation.ranks = c.job.pipeline.tp;
  simulation.gather_cost = static_cast<simulate::nanoseconds>(c.gather_ms * 1e6);
  return simulation;
}

class simulator_engine final : public engine {
 public:
  engine_kind kind() const override { return engine_kind::simulator; }

  result<outcome> run(const cell& c) const override {
    if (auto good = check_cell(c); !good) return good.failure();
    const auto dispatch = plan::make_dispatch_plan(c.job, cell_policies{c});
    if (!dispatch) return dispatch.failure();
    outcome_sum sum{c};
    for (std::uint32_t r = 0; r < c.job.pipeline.replicas; ++r) {
      const auto costs = plan::expected_costs(c.job, replica_id{r});
      if (!costs) return costs.failure();
      const auto ran = simulate::run(simulation_of(c, *dispatch, *costs), *costs);
      if (!ran) return ran.failure();
      std::vector<double> step_ms;
      for (const auto& step : ran->steps) step_ms.push_back(milliseconds(step.makespan));
      std::vector<stage_time> stages;
      for (const auto& s : ran->stages) {
        const auto idle_ms = [&](wait_cause why) {
          return milliseconds(s.idle_by_cause[static_cast<std::size_t>(why)]);
        };
        stages.push_back({milliseconds(s.busy), milliseconds(s.blocked),
                          milliseconds(s.behind) + idle_ms(wait_cause::ranks),
                          idle_ms(wait_cause::gathering), idle_ms(wait_cause::deferred),
                          s.agreement, s.memory});
      }
      sum.add(step_ms, stages);
    }
    return sum.finish();
  }
};

}  // namespace

std::unique_ptr<engine> make_simulator_engine() { return std::make_unique<simulator_engine>(); }

}  // namespace rrfp::experiment

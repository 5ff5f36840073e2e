#include <rrfp/base/units.hpp>
#include <rrfp/job/plan.hpp>
#include <rrfp/simulate/simulator.hpp>

#include "hints.hpp"

namespace rrfp::experiment {

namespace {

stage_time time_of(const simulate::stage_report& s, const agreement_cost& agreement) {
  const auto for_ranks = s.behind + s.idle_by_cause[static_cast<std::size_t>(wait_cause::ranks)] -
                         agreement.gathering - agreement.deferred;
  return {milliseconds(s.busy),
          milliseconds(s.blocked),
          milliseconds(for_ranks),
          milliseconds(agreement.gathering),
          milliseconds(agreement.deferred),
          agreement.counts,
          s.memory};
}

}  // namespace

result<outcome> run_in_simulator(const cell& c) {
  if (auto good = check_cell(c); !good) return good.failure();
  const auto dispatch = job::make_dispatch_plan(c.job, cell_policies{c});
  if (!dispatch) return dispatch.failure();
  outcome_sum sum{c};
  for (std::uint32_t r = 0; r < c.job.pipeline.replicas; ++r) {
    const auto costs = job::expected_costs(c.job, replica_id{r});
    if (!costs) return costs.failure();
    auto simulation = job::simulation_of(*dispatch, *costs, c.job.train.steps);
    std::optional<candidates> agreeing;
    if (c.agreement == rank_agreement::candidates) {
      simulation.ranks = c.job.pipeline.tp;
      agreeing.emplace(simulation, static_cast<simulate::nanoseconds>(c.gather_ms * 1e6));
    }
    const auto ran = simulate::run(simulation, *costs);
    if (!ran) return ran.failure();
    std::vector<double> step_ms;
    for (const auto& step : ran->steps) step_ms.push_back(milliseconds(step.makespan));
    std::vector<stage_time> stages;
    for (std::uint32_t i = 0; i < ran->stages.size(); ++i)
      stages.push_back(
          time_of(ran->stages[i], agreeing ? agreeing->cost_of(stage_id{i}) : agreement_cost{}));
    sum.add(step_ms, stages);
  }
  return sum.finish();
}

}  // namespace rrfp::experiment

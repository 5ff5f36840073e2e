#include <rrfp/wall_clock/engine.hpp>

#include <algorithm>
#include <future>
#include <vector>

#include <rrfp/actors/job_session.hpp>
#include <rrfp/experiment/hints.hpp>

namespace rrfp::wall_clock {

namespace {

using experiment::cell;
using experiment::outcome;

/// Longer than any task or message of a reasonable experiment.
constexpr double hang_timeout_s = 600;

struct replica_result {
  actors::run_result run;
  std::vector<double> step_ms;
};

/// In mode in-order a schedule may stall; the simulator finds that out at once.
status check_ends(const cell& c, replica_id replica) {
  if (c.job.dispatch.mode == dispatch_mode::ready) return success();
  const auto dispatch = plan::make_dispatch_plan(c.job, experiment::cell_policies{c});
  if (!dispatch) return dispatch.failure();
  const auto costs = plan::expected_costs(c.job, replica);
  if (!costs) return costs.failure();
  const auto ran = simulate::run(plan::simulation_of(*dispatch, *costs, c.job.train.steps), *costs);
  if (!ran) return ran.failure();
  return success();
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

class wall_clock_engine final : public experiment::engine {
 public:
  experiment::engine_kind kind() const override { return experiment::engine_kind::wall_clock; }

  result<outcome> run(const cell& c) const override {
    if (auto good = check_cell(c); !good) return good.failure();
    const auto scale = c.job.device.time_scale;
    const auto steps = static_cast<double>(c.job.train.steps);
    std::vector<std::future<result<replica_result>>> replicas;
    for (std::uint32_t r = 0; r < c.job.pipeline.replicas; ++r) {
      if (auto ends = check_ends(c, replica_id{r}); !ends) return ends.failure();
      auto setup =
          actors::make_setup_without_model(c.job, experiment::cell_policies{c}, replica_id{r});
      if (!setup) return setup.failure();
      setup->replicas = 1;
      setup->hang_timeout_s = hang_timeout_s;
      replicas.push_back(std::async(std::launch::async, run_replica, std::move(*setup)));
    }
    experiment::outcome_sum sum{c};
    double launch_gap_ms = 0;
    for (auto& replica : replicas) {
      auto ran = replica.get();
      if (!ran) return ran.failure();
      for (auto& ms : ran->step_ms) ms /= scale;
      std::vector<experiment::stage_time> stages;
      for (const auto& s : ran->run.summary.stages) {
        stages.push_back({s.busy_ms / scale, s.blocked_ms / scale, s.ranks_ms / scale,
                          s.gathering_ms / scale, s.deferred_ms / scale, s.agreement, s.memory});
        launch_gap_ms = std::max(launch_gap_ms, s.launch_gap_ms / scale / steps);
      }
      sum.add(ran->step_ms, stages);
    }
    auto o = sum.finish();
    o.launch_gap_ms = launch_gap_ms;
    return o;
  }
};

}  // namespace

std::unique_ptr<experiment::engine> make_engine() { return std::make_unique<wall_clock_engine>(); }

}  // namespace rrfp::wall_clock

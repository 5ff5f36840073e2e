#include <vector>

#include <rrfp/actors/job_cluster.hpp>
#include <rrfp/actors/job_session.hpp>
#include <rrfp/study/blocking_sends.hpp>

#include "hints.hpp"

namespace rrfp::experiment {

namespace {

/// Longer than any task or message of a reasonable experiment.
constexpr double hang_timeout_s = 600;

/// In mode in-order a schedule may stall; the simulator finds that out at once.
status check_ends(const cell& c, replica_id replica) {
  if (c.job.dispatch.mode == dispatch_mode::ready) return success();
  const cell_policies policies{c};
  const auto simulation = job::simulation_of(c.job, policies, c.job.train.steps, replica);
  if (!simulation) return simulation.failure();
  const auto ran = simulate::run(*simulation, simulation->costs);
  if (!ran) return ran.failure();
  return success();
}

}  // namespace

result<outcome> run_on_wall_clock(const cell& c) {
  if (auto good = check_cell(c); !good) return good.failure();
  for (std::uint32_t r = 0; r < c.job.pipeline.replicas; ++r)
    if (auto ends = check_ends(c, replica_id{r}); !ends) return ends.failure();
  if (auto enough = actors::check_threads(c.job, 1); !enough) return enough.failure();
  auto setup = actors::make_setup_without_model(c.job, cell_policies{c});
  if (!setup) return setup.failure();
  study::prepare_session(c.job, *setup);
  const auto scale = c.job.device.time_scale;
  std::vector<double> step_ms;
  setup->hang_timeout_s = hang_timeout_s;
  setup->on_step = [&](const actors::step_summary& s) { step_ms.push_back(s.step_ms / scale); };
  auto session = actors::session::open(*std::move(setup));
  if (!session) return session.failure();
  const auto ran = (*session)->run();
  if (ran.how != actors::ending::done) return error{ran.message};
  std::vector<stage_time> stages;
  for (const auto& s : ran.summary.stages)
    stages.push_back({.busy_ms = s.busy_ms / scale,
                      .blocked_ms = s.blocked_ms / scale,
                      .ranks_ms = s.ranks_ms / scale,
                      .agreement = {},
                      .memory = s.memory,
                      .launch_gap_ms = s.launch_gap_ms / scale});
  outcome_sum sum{c};
  sum.add(step_ms, stages);
  return sum.finish();
}

}  // namespace rrfp::experiment

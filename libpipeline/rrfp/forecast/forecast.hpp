/// What another schedule would have made of a recorded run.
///
/// The recorded times of tasks and messages are the costs of the simulator. First it replays the
/// order that was recorded, task by task: the replayed steps must meet the measured ones, and their
/// error says how far to trust the rest. Then it runs other schedules and readiness on the same
/// costs: each task takes as long as recorded, a message whose time is unknown the median of the
/// known ones, and each launch the median gap between two tasks that waited for nothing.
///
/// One run is one draw of what varies. Costs are those of replica 0.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/core/policy.hpp>
#include <rrfp/core/stage_core.hpp>
#include <rrfp/report/trace.hpp>

namespace rrfp::forecast {

struct replayed_step {
  step_id step;
  /// From the begin of its first task to the end of its last.
  double measured_ms = 0;
  double replayed_ms = 0;

  double error_percent() const { return (replayed_ms / measured_ms - 1) * 100; }
};

/// One schedule on the recorded costs.
struct outcome {
  /// Or what is changed: recorded order, even cut, two replicas.
  std::string policy;
  dispatch_mode mode = dispatch_mode::ready;
  std::uint32_t slots = 0;  ///< of each stage; 0: as many as its order takes
  double step_ms = 0;       ///< median over the steps
  double bubble = 0;        ///< over all steps
  /// It splits backwards that were not split in the run: B takes the assumed share, W the rest.
  bool assumes_split = false;
};

struct forecast {
  /// The fixed schedule whose order the run followed; empty: none that rrfp knows.
  std::string schedule;
  std::uint32_t slots = 0;  ///< most microbatches that a stage held
  std::vector<replayed_step> steps;
  double measured_ms = 0;  ///< median, as the next
  double replayed_ms = 0;
  double error_percent = 0;  ///< median over the steps, without sign
  double bubble = 0;         ///< measured
  double launch_ms = 0;      ///< median gap between two tasks
  double message_ms = 0;     ///< median; 0: no message was waited for
  std::vector<outcome> outcomes;
  /// What the names of outcomes that are no policies mean; one sentence each.
  std::vector<std::string> notes;

  /// Share of the replayed step that an outcome saves, in percent.
  double gain_percent(const outcome& o) const { return (1 - o.step_ms / replayed_ms) * 100; }
};

/// `backward_share`: of a backward that was not split, the share that counts as B.
/// Errors: the run has no whole step, its tasks take no time, or its order does not terminate.
result<forecast> make_forecast(const report::traced_run& run, const policy_registry& policies,
                               double backward_share);

/// The answer in one sentence: readiness beside the recorded order on the same costs. It warns if
/// the replay is more than 5 % off.
std::string sentence_of(const forecast& f);

/// Steps of the run and of all outcomes as bars, an SVG picture.
std::string chart_of(const forecast& f, std::string_view run);

}  // namespace rrfp::forecast

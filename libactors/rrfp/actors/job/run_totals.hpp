/// What a run adds up: the stages' results to a step, and the steps to the run's summary. Sums run
/// in the order of the replicas and stages, not in the order of arrival.
///
/// Used by the job actor alone.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include <rrfp/actors/control/messages.hpp>
#include <rrfp/actors/session.hpp>
#include <rrfp/core/job_events.hpp>

namespace rrfp::actors {

class run_totals {
 public:
  /// `lr`: the learning rate of a step (from 1); empty: that of `train`.
  run_totals(job::train_options train, std::function<double(std::uint64_t step)> lr,
             std::uint32_t stages, std::uint64_t first_step);

  /// Times are nanoseconds since the run began.
  void begin_step(step_id step, compute::step_purpose purpose, const microbatch_shares& shares,
                  std::int64_t now);
  /// The first result of each stage counts. Results of other steps are ignored.
  void record(stage_step_ended m);
  /// All stages have reported: the update of a training step. Other steps have none; ignore it.
  /// Error: the norm of the gradients is NaN or infinite, and no scale of the loss is the cause.
  result<apply_update> add_up();
  std::int64_t step_began() const { return step_began_; }
  /// The results of the step, once all stages have reported.
  const std::map<stage_key, stage_step_ended>& outcomes() const { return outcomes_; }
  /// Counts the step unless it is an evaluation.
  const step_summary& finish_step(std::int64_t now);
  /// Adds the evaluation step that finish_step() returned last to the evaluation of `batches` steps
  /// that is under way. After its last batch: the evaluation; `step`: complete training steps.
  std::optional<evaluation_summary> finish_batch(std::uint32_t batches);
  /// The losses, times and idle share of the whole run.
  run_summary finish_run(std::int64_t now) const;

  /// What is added up so far, for a run that goes on from here; of the stages as details.
  /// `saved_step`: of the newest checkpoint; `checkpoints`: saved by this run.
  job_record record(std::int64_t now, std::uint64_t saved_step, std::uint32_t checkpoints) const;
  /// Goes on from the record of an earlier run.
  void go_on_from(const job_record& record);
  /// Goes on from the history in a checkpoint, if the same run wrote it, which began after
  /// `began_after` steps. If it did not, the run counts from the checkpoint on.
  void go_on_from(std::string_view history, std::uint64_t began_after);
  std::uint64_t saved_step() const { return history_.saved_step; }
  /// Complete, of the run; when it goes on, those before the loss too.
  std::uint64_t steps() const { return history_.run.steps; }
  /// That are complete.
  std::uint64_t evaluations() const { return history_.evaluations; }

 private:
  void add_to_stage(const stage_step_ended& o);
  /// The factor of the gradients of an update.
  double factor_of_update();

  const job::train_options train_;
  const std::function<double(std::uint64_t)> lr_;
  step_id step_;
  microbatch_shares shares_;
  std::int64_t step_began_ = 0;
  std::map<stage_key, stage_step_ended> outcomes_;
  step_summary summary_;
  evaluation_summary evaluation_;  ///< under way; `loss` is a sum
  std::uint32_t batches_ = 0;      ///< of it, finished
  /// Loss terms of the steps whose gradients wait for the update, and of the first of them.
  std::int64_t waiting_terms_ = 0;
  std::int64_t first_terms_ = 0;
  // Of the steps since the run began or went on.
  std::vector<double> step_ms_;
  /// Sums over all complete steps. Does not grow with their number.
  struct history {
    run_summary run;
    std::uint64_t evaluations = 0;
    double busy_ms = 0;
    double span_ms = 0;
    double seconds = 0;  ///< before this run went on from a record
    std::uint64_t saved_step = 0;
    std::uint32_t skips_in_row = 0;
  };
  friend auto fields(auto f, history& x) {
    return f(x.run, x.evaluations, x.busy_ms, x.span_ms, x.seconds, x.saved_step, x.skips_in_row);
  }
  history history_;
};

}  // namespace rrfp::actors

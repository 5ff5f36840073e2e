/// The events that a job core receives and the actions that it returns.
///
/// Losses, hashes, manifests, actor handles and reports stay with the driver, keyed by step, stage
/// or rank; the core sees who has answered. docs/driving-the-core.md says what to do with each
/// action.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/core/placement.hpp>

namespace rrfp {

/// One stage of one replica.
struct stage_key {
  replica_id replica;
  stage_id stage;

  auto operator<=>(const stage_key&) const = default;
};

/// How a job ends: done, or with an error of this kind.
enum class job_end : std::uint8_t { done, interrupted, bad_input, failed, node_lost };

/// nullopt if the job completed.
constexpr std::optional<error_kind> kind_of(job_end how) {
  switch (how) {
    case job_end::done: return std::nullopt;
    case job_end::interrupted: return error_kind::interrupted;
    case job_end::bad_input: return error_kind::bad_input;
    case job_end::failed: return error_kind::failed;
    case job_end::node_lost: return error_kind::node_lost;
  }
  return error_kind::failed;
}

constexpr job_end end_of(error_kind kind) {
  switch (kind) {
    case error_kind::bad_input: return job_end::bad_input;
    case error_kind::failed: return job_end::failed;
    case error_kind::node_lost: return job_end::node_lost;
    case error_kind::interrupted: return job_end::interrupted;
  }
  return job_end::failed;
}

/// `accumulate`: a step whose gradients wait for those of the next one that trains.
enum class job_demand : std::uint8_t { train, accumulate, evaluate, save, finish };

enum class job_timer : std::uint8_t {
  watch,    ///< the next tick is due
  inquiry,  ///< the stages had time to answer
  reports,  ///< the nodes had time to write the hang report
  loss,     ///< the membership had time to report the cause of a loss
  drain,    ///< all nodes had time to say that they are told to end
};

namespace job_event {

// Each of these is expected in one phase only.

/// All stages and ranks can be reached.
struct start {};
/// By one rank: it has the state of the first step. Ranks are counted here, too.
struct state_restored {};
struct stage_ended {
  step_id step;
  stage_key stage;
};
/// The driver has added up the stages' results and can update or finish the step.
struct added_up {
  step_id step;
};
/// By one rank. Ranks are counted: the message carries no rank.
struct update_applied {
  step_id step;
};
/// The folder of the save exists.
struct save_opened {
  std::uint64_t step = 0;
};
struct weights_reported {
  rank_address from;
};
/// All replicas have the same weights.
struct weights_agree {};

// These may come in every phase.

/// The watch timer fired. `silence`: nanoseconds since a stage last made progress.
struct tick {
  std::int64_t silence = 0;
};
/// A timer other than the watch fired.
struct timer_fired {
  job_timer which = job_timer::inquiry;
  std::uint64_t number = 0;  ///< of the set_timer
};
struct demanded {
  job_demand wanted = job_demand::train;
  microbatch_counts microbatches = {};  ///< of a step; empty: the driver decides
};
/// A process other than the leader waits for the leader's program to demand this step.
struct batch_given {
  step_id step;
};
/// `step` of the events of a save: complete steps. Ranks are counted here, too.
struct snapshot_taken {
  std::uint64_t step = 0;
};
struct snapshot_written {
  std::uint64_t step = 0;
  std::string failure;  ///< empty: the rank's file is on disk
};
struct save_ended {
  std::uint64_t step = 0;
  std::string failure;  ///< empty: the checkpoint is complete
};
/// In a run on request: a rank has copied its state after `step` steps, which may change from now
/// on. Ranks are counted here, too.
struct copy_taken {
  std::uint64_t step = 0;
};
/// The state of one rank after `step` steps is held in memory as often as it should be.
struct copy_held {
  std::uint64_t step = 0;
  std::string failure;  ///< empty: the copy is held
};
/// `again`: the second interrupt, which ends the run without a save.
struct interrupted {
  bool again = false;
};
/// A node is told to end. If all nodes are, it is an interrupt of the run; else this node alone
/// leaves, and another process takes its place.
struct drain_asked {
  node_id node;
};
/// A process waits to take the place of a node that the job has gone on without: the run ends after
/// a step, as if the node left, and all join again.
struct node_waits {
  node_id node;
};
struct failed {
  error why;
};
/// The same, unless the cause is reported within the loss time. A loss that is suspected within it
/// replaces another suspicion.
struct suspected {
  error why;
};
struct report_requested {
  std::string why;
};
struct progress_reported {
  stage_key stage;
};

using any =
    std::variant<start, state_restored, stage_ended, added_up, update_applied, save_opened,
                 weights_reported, weights_agree, tick, timer_fired, demanded, batch_given,
                 snapshot_taken, snapshot_written, save_ended, copy_taken, copy_held, interrupted,
                 drain_asked, node_waits, failed, suspected, report_requested, progress_reported>;

}  // namespace job_event

namespace job_action {

/// On all ranks: take the state of the first step from the copies. Answer with state_restored, one
/// for each rank.
struct restore_state {};
/// On all stages; answer with stage_ended, one for each stage. The id tells whether it is an
/// evaluation.
struct begin_step {
  step_id step;
  bool accumulates = false;             ///< its gradients wait for those of the next step
  bool gradients_wait = false;          ///< those of earlier steps wait for an update
  microbatch_counts microbatches = {};  ///< as demanded
};
/// Add up the stages' results; answer at once with added_up or failed.
struct add_up {
  step_id step;
};
/// On all ranks; answer with update_applied, one for each rank.
struct apply_update {
  step_id step;
};
/// The step is over: pass its summary on, in a run on request with state_ready.
struct finish_step {
  step_id step;
};
/// In a run on request, to all nodes: programs may change the state, because it is restored, or
/// copied after a step or for a save on demand.
struct state_ready {};
/// Create the folder of the save; answer at once with save_opened or save_ended.
struct open_save {
  std::uint64_t step = 0;
};
/// On the ranks of replica 0; answer with snapshot_taken and snapshot_written, one for each rank.
struct take_snapshot {
  std::uint64_t step = 0;
};
/// Commit the manifest in the background; answer with save_ended.
struct commit_save {
  std::uint64_t step = 0;
};
/// The save is over: report it. `overdue`: it took too long, and is the last one of the run.
struct end_save {
  std::uint64_t step = 0;
  std::string failure;
  bool overdue = false;
};
/// On the ranks of replica 0, in the background: copy the state, and hold it on two nodes. Answer
/// with copy_held, one for each rank; in a run on request first with copy_taken.
struct copy_state {
  std::uint64_t step = 0;
  /// The newest step of which the copies of all ranks are held; 0: there is none.
  std::uint64_t complete = 0;
};
/// The copies of all ranks are held: the nodes drop older ones.
struct keep_copies {
  std::uint64_t step = 0;
};
/// A copy failed: report it. The copies before it stay.
struct drop_copies {
  std::uint64_t step = 0;
  std::string failure;
};
/// On all ranks; answer with weights_reported, one for each rank.
struct report_weights {};
/// Compare the replicas' weights; answer at once with weights_agree or failed.
struct compare_weights {};
/// Ask all stages what they wait for; answer with progress_reported, one for each stage.
struct ask_progress {
  std::uint64_t number = 0;
  std::int64_t silence = 0;  ///< of the hang, in nanoseconds; 0: a report was requested
  std::string why;  ///< of the request, or the cause of the hang, if the stages do not know it
};
/// Derive the causes from what the stages have answered so far, and let the nodes write reports.
struct write_reports {
  std::uint64_t number = 0;
  bool hang = false;  ///< the message of the end is this report
};
/// Restarts the stall timer.
struct note_progress {};
/// Answer with tick (watch) or timer_fired after `ms`.
struct set_timer {
  job_timer which = job_timer::watch;
  std::uint32_t ms = 0;
  std::uint64_t number = 0;
};
/// The job is over. Always the last action.
struct end {
  job_end how = job_end::done;
  std::string message{};      ///< what failed and where; empty otherwise
  bool nothing_lost = false;  ///< interrupted between two steps, and all complete steps are saved
  /// No task finished for the time limit, and running tasks may never return; the message is the
  /// hang report.
  bool hung = false;
  /// node_lost, but in order: this node leaves between two steps.
  std::optional<node_id> drained{};
};

using any = std::variant<restore_state, begin_step, add_up, apply_update, finish_step, state_ready,
                         open_save, take_snapshot, commit_save, end_save, copy_state, keep_copies,
                         drop_copies, report_weights, compare_weights, ask_progress, write_reports,
                         note_progress, set_timer, end>;

}  // namespace job_action

}  // namespace rrfp

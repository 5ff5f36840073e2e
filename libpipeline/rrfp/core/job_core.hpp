/// Decides what a job does next: steps stages and ranks through the training, saves, watches for
/// hangs, and ends the run.
///
///   created -> stepping -> updating -> stepping ... -> hashing_weights -> ended
///
/// An evaluation has no update: its batches run between two steps. With on_request, the job waits
/// in phase idle for the next demand between two steps, without a limit; and a demanded step may
/// leave its gradients to the next one, without an update and a save between them.
///
/// Between two steps the job may save: updating -> waiting_to_save, while an earlier save is still
/// being written -> copying -> stepping; the rest of the save runs in the background. At the end
/// the job waits for it: hashing_weights -> finishing_save -> ended.
///
/// For recovery, the ranks copy their state after a step in the background, one copy at a time: a
/// step that ends before the last copy is held makes none. After a loss, a new run begins with the
/// state of the newest copies: created -> restoring -> stepping. With on_request nobody can begin
/// again from the first step: the state after it is copied at once, and no training step follows
/// before these copies are held, or have failed.
///
/// A node that is told to end asks for a drain. If the others do not ask within drain_ms, the run
/// ends after the next training step: it saves and copies the state of that step, waits in phase
/// handing_over until the copies are held, and ends as if the node were lost. So the run that
/// follows with another process of the node repeats no step. One node leaves at a time; the others
/// that have asked ask again in the next run.
///
/// A failure or a hang ends the run from every phase. So does an interrupt without checkpoints, and
/// a second interrupt; the first one lets the running step end and saves it.
///
/// Pure: equal events and times give equal actions. After `end` there are no actions. An event that
/// the phase does not expect, or that repeats an answer, changes nothing. The job actor drives it;
/// docs/driving-the-core.md has the driver's duties and the table of transitions.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <rrfp/core/job_events.hpp>

namespace rrfp {

struct job_core_options {
  std::uint32_t stages = 1;
  std::uint32_t ranks = 1;     ///< of each stage
  std::uint32_t replicas = 1;  ///< of the pipeline
  std::uint32_t nodes = 1;
  std::uint32_t absent = 0;      ///< nodes that the job has gone on without
  std::uint64_t first_step = 0;  ///< steps that were complete before the run
  std::uint64_t steps = 0;       ///< the training is complete after so many; unused with on_request
  bool on_request = false;       ///< steps begin on demand only
  struct saving {
    std::uint64_t every = 0;  ///< steps between two saves; 0: only at the end
    /// Nanoseconds. A save that takes longer has failed, and is the last one of the run.
    std::int64_t time_max = 0;
  };
  std::optional<saving> saves;  ///< nothing: no checkpoints
  struct copying {
    std::uint64_t every = 1;  ///< steps between two copies
    /// Nanoseconds. A copy that takes longer has failed.
    std::int64_t time_max = 600'000'000'000;
    /// After a loss, the run goes on from copies of first_step, or from a checkpoint of that step.
    /// If an evaluation is due after it, it is made then.
    bool restores = false;
    bool resumes = false;
    std::uint64_t saved = 0;        ///< if it restores, the steps of the newest checkpoint
    std::uint64_t evaluations = 0;  ///< batches of evaluations that the steps before had
  };
  std::optional<copying> copies;  ///< nothing: no copies for recovery
  struct evaluating {
    std::uint64_t every = 0;    ///< steps between two evaluations; 0: only after the last step
    std::uint32_t batches = 1;  ///< of an evaluation, each a begin_step of its own
  };
  std::optional<evaluating> evaluation;  ///< unused with on_request
  double hang_timeout_s = 0;             ///< 0: none
  std::uint32_t loss_ms = 3000;          ///< how long the membership may take to report a cause
  /// If all nodes are told to end, they all ask within this time; until then the run continues.
  std::uint32_t drain_ms = 3000;
};

enum class job_phase : std::uint8_t {
  created,
  restoring,
  idle,
  stepping,
  updating,
  waiting_to_save,
  copying,         ///< for a checkpoint
  copying_memory,  ///< for recovery, in a run on request
  handing_over,
  hashing_weights,
  finishing_save,
  reporting_hang,
  ended,
};

/// Not thread-safe.
class job_core {
 public:
  static constexpr std::uint32_t watch_ms = 250;
  /// How long stages may take to report what they wait for.
  static constexpr std::uint32_t inquiry_ms = 1000;
  /// How long nodes may take to write their reports before the run ends.
  static constexpr std::uint32_t reports_ms = 1000;

  explicit job_core(job_core_options options);

  /// The actions, to be carried out in this order. `now`: nanoseconds since the run began.
  std::vector<job_action::any> on(const job_event::any& e, std::int64_t now);

  job_phase phase() const { return phase_; }
  /// The last step saved, or resumed from.
  std::uint64_t last_saved() const { return last_saved_; }
  /// An interrupt ends the run after its last step, and all complete steps are saved.
  bool nothing_lost() const { return in_order_ && last_saved_ == steps_done(); }

 private:
  struct save {
    std::uint64_t step = 0;
    std::int64_t began = 0;
    bool opened = false;
    std::uint32_t copies = 0;
    std::uint32_t files = 0;
    std::string failure;  ///< the first one of a rank
  };
  /// Copies that are being made.
  struct copies {
    std::uint64_t step = 0;
    std::int64_t began = 0;
    std::uint32_t taken = 0;
    std::uint32_t held = 0;
  };
  /// A question to all stages.
  struct inquiry {
    std::uint64_t number = 0;
    bool hang = false;
    std::set<stage_key> answered;
  };

  bool expects(const job_event::any& e) const;

  // Each returns the phase that follows.
  job_phase after(const job_event::start&);
  job_phase after(const job_event::state_restored&);
  job_phase after(const job_event::stage_ended& e);
  job_phase after(const job_event::added_up& e);
  job_phase after(const job_event::update_applied& e);
  job_phase after(const job_event::save_opened& e);
  job_phase after(const job_event::weights_reported& e);
  job_phase after(const job_event::weights_agree&);
  job_phase after(const job_event::tick& e);
  job_phase after(const job_event::timer_fired& e);
  job_phase after(const job_event::demanded& e);
  job_phase after(const job_event::snapshot_taken& e);
  job_phase after(const job_event::snapshot_written& e);
  job_phase after(const job_event::save_ended& e);
  job_phase after(const job_event::copy_taken& e);
  job_phase after(const job_event::copy_held& e);
  job_phase after(const job_event::interrupted& e);
  job_phase after(const job_event::batch_given& e);
  job_phase after(const job_event::drain_asked& e);
  job_phase after(const job_event::node_waits& e);
  job_phase after(const job_event::failed& e);
  job_phase after(const job_event::suspected& e);
  job_phase after(const job_event::report_requested& e);
  job_phase after(const job_event::progress_reported& e);

  job_phase begin_next_step();
  /// Starts the oldest demand, or waits for one.
  job_phase serve_next_demand();
  job_phase begin(step_id step, microbatch_counts microbatches = {}, bool accumulates = false);
  job_phase finish_step();
  /// After a step: saves if a save is due, and continues. In a run on request, the programs hear of
  /// the end of a step or a save when the state has been copied, because they may change it then.
  job_phase continue_run();
  job_phase begin_save();
  /// Copies the state, unless it is not due or the copies before are not all held.
  void copy_state_if_due();
  void copy_state();
  void give_up_copies(std::string failure);
  /// The copies are held, or given up.
  job_phase continue_after_copies(job_phase phase);
  /// The next demand changes the state, of which there is no copy yet.
  bool waits_for_first_copies() const;
  /// Other processes wait for the leader's next demand.
  bool is_demand_late() const;
  job_phase end_save(std::string failure, bool overdue = false);
  job_phase hash_weights();
  /// Ends an interrupted run whose complete steps are all saved or being saved; or one that a node
  /// leaves, once the state of its last step is held.
  job_phase leave();
  job_phase hand_over();
  /// Ends the run as soon as no save is in progress.
  job_phase conclude(job_end how);
  /// Done, interrupted, or a node leaves (node_lost).
  job_phase end_in_order(job_end how);
  job_phase end(job_end how, std::string message = {}, bool hung = false);

  void inquire(std::int64_t silence, std::string why, bool hang);
  void end_inquiry();
  void note_progress();
  void set_timer(job_timer which, std::uint32_t ms, std::uint64_t number = 0);

  bool exists(const stage_key& s) const;
  bool exists(const rank_address& r) const;
  std::uint32_t stage_count() const { return options_.replicas * options_.stages; }
  std::uint32_t rank_count() const { return stage_count() * options_.ranks; }
  /// The number of ranks of replica 0; the other replicas have the same tensors.
  std::uint32_t saving_ranks() const { return options_.stages * options_.ranks; }
  /// Steps that are complete, those before the run included.
  std::uint64_t steps_done() const { return options_.first_step + steps_; }
  bool is_evaluation_due() const;
  /// Whether the state after `steps` steps is to be saved now; `last`: no step follows.
  bool is_save_due(std::uint64_t steps, bool last) const;
  bool is_save_running(std::uint64_t step) const { return save_ && save_->step == step; }

  const job_core_options options_;
  job_phase phase_ = job_phase::created;
  std::vector<job_action::any> actions_;  ///< of the event at hand
  std::int64_t now_ = 0;
  std::int64_t silence_ = 0;

  std::uint64_t steps_ = 0;         ///< complete, of this run
  std::uint64_t applied_;           ///< steps_done() at the last update, which a save has
  std::uint64_t evaluations_ = 0;   ///< begun, one for each batch
  std::uint32_t batches_left_ = 0;  ///< of the evaluation that is due
  step_id step_;                    ///< the running one, or the last
  bool accumulates_ = false;        ///< gradients wait for their update, or will after the step
  std::set<stage_key> stages_ended_;
  std::uint32_t updates_ = 0;
  std::set<rank_address> hashed_;

  std::deque<job_event::demanded> demands_;
  std::optional<step_id> given_;  ///< the last step for which another process has waited
  bool finishing_ = false;        ///< the last demand was to finish
  bool leaving_ = false;          ///< the run ends after the step and its save

  std::vector<node_id> drains_asked_;  ///< in order
  std::optional<node_id> drained_;     ///< leaves, or joins, after the next training step

  std::optional<save> save_;
  std::uint64_t last_save_;   ///< last step tried, or resumed from
  std::uint64_t last_saved_;  ///< last step saved, or resumed from
  bool no_more_saves_ = false;
  /// A save was demanded: the next state between two steps is saved, whatever its number.
  bool save_asked_ = false;
  bool state_ready_ = false;  ///< the action is due
  /// How the run ends after phase finishing_save.
  job_end conclusion_ = job_end::done;
  bool in_order_ = false;  ///< interrupted once, between two steps

  std::uint32_t restored_ = 0;  ///< ranks
  std::optional<copies> copies_;
  std::uint64_t last_copy_ = 0;    ///< last step tried, or restored
  std::uint64_t last_copied_ = 0;  ///< the copies of all ranks are held; 0: none are

  std::optional<inquiry> inquiry_;
  std::uint64_t inquiries_ = 0;
  std::optional<error> suspicion_;  ///< the first one; rather that of a loss
};

}  // namespace rrfp

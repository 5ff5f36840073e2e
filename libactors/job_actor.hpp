/// The job: asks nodes to host the stages, steps them through the training, and decides how it
/// ends.
///
///   hosting_stages -> hosting_ranks -> stepping -> updating -> stepping ...
///     -> hashing_weights -> (ended)
///
/// An evaluation has no update. In a session with on_request, the job waits for the next demand
/// between two steps, in phase idle, without a limit.
///
/// Between two steps the job may save (job_saves.hpp): updating -> waiting_to_save, while an
/// earlier save is still being written -> copying -> stepping; the rest of the save runs in the
/// background. At the end the job waits for it: hashing_weights -> finishing_save -> (ended).
///
/// A failure or a hang ends the run from every phase. So does an interrupt without checkpoints, and
/// a second interrupt; the first one lets the running step end and saves it.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/actors/session.hpp>

#include "caf_compat.hpp"
#include "job_saves.hpp"
#include "messages.hpp"
#include "run_context.hpp"

namespace rrfp::actors {

struct job_setup {
  std::vector<caf::actor> nodes;
  job::train_options train;
  /// Steps begin on demand only.
  bool on_request = false;
  /// Steps that were complete before the run.
  std::uint64_t first_step = 0;
  /// Nothing: no checkpoints.
  std::optional<checkpoint_setup> checkpoint;
  std::shared_ptr<run_context> context;
  double hang_timeout_s = 60;
  std::function<void(const step_summary&)> on_step;
  std::function<void(const checkpoint_report&)> on_checkpoint;
  /// Called once, at the end, before the nodes are notified. Nothing else is called after it.
  std::function<void(run_result)> on_end;
};

class job_actor : public actor_base {
 public:
  job_actor(caf::actor_config& config, job_setup setup);

  caf::behavior make_behavior() override;
  /// Job, nodes and stages refer to each other; this breaks the reference cycle.
  void on_exit() override;

 private:
  enum class phase : std::uint8_t {
    hosting_stages,
    hosting_ranks,
    idle,
    stepping,
    updating,
    waiting_to_save,
    copying,
    hashing_weights,
    finishing_save,
    reporting_hang
  };

  void on_supervisors_hosted(supervisors_hosted& m);
  void on_ranks_hosted(ranks_hosted& m);
  void on_stage_step_ended(stage_step_ended& m);
  void on_update_applied(const update_applied& m);
  void on_stage_weights(stage_weights& m);
  void on_stage_progress(stage_progress& m);
  void on_snapshot_taken(const snapshot_taken& m);
  void on_snapshot_written(const snapshot_written& m);
  void on_save_ended(const save_ended& m);
  void on_interrupted(const interrupted& m);
  void on_demand(const demand& m);
  void on_report_requested(const report_requested& m);
  void on_inquiry_over(const inquiry_over& m);
  void watch();

  /// Asks all stages what they wait for, and then lets the nodes write their reports.
  void inquire(std::string why);
  void end_inquiry();
  void begin_next_step();
  void begin(step_id step, compute::step_purpose purpose);
  void finish_step();
  void end_step();
  void count_step();
  void hash_weights();
  /// Starts the oldest demand, or waits for one.
  void serve_next_demand();
  void count(const step_summary& s);
  /// Steps that are complete, those before the run included.
  std::uint64_t steps_done() const { return setup_.first_step + result_.summary.steps; }
  /// After a step: saves if a save is due, and continues.
  void continue_run();
  void save();
  void end_save(std::string failure);
  /// Ends an interrupted run whose complete steps are all saved or being saved.
  void leave();
  /// Ends the run as soon as no save is in progress.
  void conclude(ending how);
  void end(ending how, std::string message = {});
  template <class Message>
  void send_to_stages(const Message& m);

  /// All ranks of the job.
  std::uint32_t rank_count() const;

  job_setup setup_;
  phase phase_ = phase::hosting_stages;
  bool ended_ = false;
  std::vector<stage_handle> stages_;
  std::vector<rank_handle> ranks_;
  std::uint32_t answers_ = 0;
  std::deque<demand> demands_;
  std::uint64_t evaluations_ = 0;
  std::optional<job_saves> saves_;
  /// A save was demanded: the next state between two steps is saved, whatever its number.
  bool save_asked_ = false;
  /// The last demand was to finish.
  bool finishing_ = false;
  /// Interrupted; the run ends after the step and its save.
  bool leaving_ = false;
  /// How the run ends after phase finishing_save.
  ending conclusion_ = ending::done;
  step_id step_;
  std::int64_t step_began_ = 0;
  step_summary summary_;
  std::vector<stage_step_ended> outcomes_;
  /// By replica.
  std::vector<std::vector<compute::parameter_hash>> hashes_;
  /// A question to all stages that is not answered yet.
  struct inquiry {
    std::uint64_t number = 0;
    std::string why;
    std::vector<std::string> texts;
    std::vector<stage_state> states;
  };
  std::optional<inquiry> inquiry_;
  std::uint64_t inquiries_ = 0;
  /// The hang report, once the run has hung.
  std::string hang_;
  std::vector<double> losses_;
  std::vector<double> step_ms_;
  double busy_ms_ = 0;
  double span_ms_ = 0;
  run_result result_;
};

}  // namespace rrfp::actors

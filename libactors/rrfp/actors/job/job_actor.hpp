/// The shell of the job core: turns messages into events of the core, and carries out its actions.
///
/// The core (rrfp/core/job_core.hpp) decides what the job does next. The actor holds what the
/// core need not see: handles of actors, results of stages, files of saves, texts of reports. It
/// makes no decision: a message is recorded, then fed to the core.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/actors/control/caf_compat.hpp>
#include <rrfp/actors/control/messages.hpp>
#include <rrfp/actors/control/run_context.hpp>
#include <rrfp/actors/session.hpp>
#include <rrfp/core/job_core.hpp>
#include <rrfp/core/share_planner.hpp>

#include "job_saves.hpp"
#include "late_ranks.hpp"
#include "run_totals.hpp"

namespace rrfp::actors {

class job_actor : public actor_base {
 public:
  /// `on_end` is called once, at the end, before the nodes are notified. Nothing else is called
  /// after it.
  job_actor(caf::actor_config& config, std::shared_ptr<run_context> context,
            std::function<void(run_result)> on_end);

  caf::behavior make_behavior() override;

 private:
  void on_stage_step_ended(stage_step_ended& m);
  void on_stage_weights(stage_weights& m);
  void on_stage_progress(stage_progress& m);
  void on_timer_fired(const timer_fired& m);

  /// Feeds the core, and then what carrying out its actions answers at once.
  void feed(job_event::any e);
  /// Answers the action being carried out. The core gets it after all actions of its event.
  void answer(job_event::any e) { answer_ = std::move(e); }

  void carry_out(const job_action::begin_step& a);
  void carry_out(const job_action::add_up& a);
  void carry_out(const job_action::apply_update&);
  void carry_out(const job_action::finish_step& a);
  void carry_out(const job_action::state_ready& a);
  void carry_out(const job_action::open_save& a);
  void carry_out(const job_action::take_snapshot& a);
  void carry_out(const job_action::commit_save&);
  void carry_out(const job_action::end_save& a);
  void carry_out(const job_action::restore_state&);
  void carry_out(const job_action::copy_state& a);
  void carry_out(const job_action::keep_copies& a);
  void carry_out(const job_action::drop_copies& a);
  void carry_out(const job_action::report_weights&);
  void carry_out(const job_action::compare_weights&);
  void carry_out(const job_action::ask_progress& a);
  void carry_out(const job_action::write_reports& a);
  void carry_out(const job_action::note_progress&);
  void carry_out(const job_action::set_timer& a);
  void carry_out(const job_action::end& a);

  /// Whether the policies of all stages are defined for so many microbatches.
  bool is_defined(std::uint32_t microbatches);
  /// `step`: complete steps.
  void report(const straggler& s, std::uint64_t step) const;
  /// What the planner learns from a step that trains.
  void observe();
  void finish_batch();
  void count_evaluation(double loss);
  void record(step_id step, const step_summary& s);
  /// Tells all nodes that a step is over.
  void tell(const step_summary& summary);
  void count(const step_summary& s);
  template <class Message>
  void send_to_nodes(const Message& m);
  /// To those of the first `replicas` replicas.
  template <class Message>
  void send_to_stages(const Message& m, std::uint32_t replicas);
  /// As send_to_stages(), but not through the stages: the job waits for the answers of all, so no
  /// step overtakes the message.
  template <class Message>
  void send_to_ranks(const Message& m, std::uint32_t replicas);
  void send_record();

  const std::shared_ptr<run_context> context_;
  const session_setup& setup_;
  const recovery_setup* const recovery_;  ///< null: no copies for recovery
  const std::function<void(run_result)> on_end_;
  run_totals totals_;
  late_ranks late_;
  share_planner planner_;
  microbatch_shares shares_;                   ///< of the running step
  std::map<std::uint32_t, bool> are_defined_;  ///< by number of microbatches
  job_core core_;
  std::optional<job_event::any> answer_;
  bool ended_ = false;
  std::vector<node_id> nodes_;  ///< without absent ones
  apply_update update_;         ///< of the running step
  std::optional<job_saves> saves_;
  /// With on_request: of a step that is over, of which the programs do not know yet.
  std::optional<step_summary> finished_;
  /// The record of the step whose state is being copied.
  job_record record_;
  /// By replica.
  std::vector<std::vector<compute::parameter_hash>> hashes_;
  /// What the stages wait for; nothing: they have not been asked.
  struct inquiry {
    std::string why;
    std::vector<std::string> causes;
    std::vector<std::string> texts;
    std::vector<stage_state> states;
  };
  std::optional<inquiry> inquiry_;
  /// The hang report, once the run has hung.
  std::string hang_;
  run_result result_;
};

}  // namespace rrfp::actors

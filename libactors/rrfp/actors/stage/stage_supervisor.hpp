/// The supervisor of a stage: owns its core and is the only actor that drives it.
///
/// Handlers only record. After a new event the supervisor posts one `decide_now` to itself, so that
/// the core sees all messages already in the mailbox before it chooses.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <rrfp/actors/control/caf_compat.hpp>
#include <rrfp/actors/control/messages.hpp>
#include <rrfp/actors/control/run_context.hpp>
#include <rrfp/actors/control/stage_state.hpp>
#include <rrfp/core/stage_core.hpp>
#include <rrfp/core/stage_snapshot.hpp>

#include "stage_ledger.hpp"

namespace rrfp::actors {

/// The parameters of a supervisor.
struct stage_parts {
  replica_id replica;
  stage_core core;
  /// This stage's entry in the run's counters.
  metrics::stage_counters* counters = nullptr;
};

class stage_supervisor : public actor_base, public runs_anywhere {
 public:
  stage_supervisor(caf::actor_config& config, stage_parts parts, actor_ref job,
                   std::shared_ptr<run_context> context);

  caf::behavior make_behavior() override;
  /// False while a step begins: the sizes of its microbatches may have to be read from files.
  bool is_quick() const override { return is_quick_; }
  /// Ranks and supervisor refer to each other; this breaks the reference cycle.
  void on_exit() override { ranks_.clear(); }

 private:
  void begin(const begin_step& m);
  /// Divides W no finer than the launches of the last step were cheap; 0: as the policy wants.
  std::uint32_t pieces_of_next_step() const;
  void on_arrived(const arrived& m);
  void on_launch_done(const launch_done& m);
  void count_time(const launch_done& m);
  /// All ranks have ended all launches: those that ended them first were ahead until now.
  void count_behind();
  void on_rank_step_ended(rank_step_ended& m);
  void choose();
  void fail(const std::string& why, error_kind kind = error_kind::failed);
  /// Called in a handler of what a user function has thrown, which ends the job.
  void fail_by_exception();
  void perform(const rrfp::launch& l);  // CAF actors have a launch() of their own
  void perform(const rrfp::wait& w);
  void end_wait(std::int64_t now);
  std::string describe(const stage_state& s) const;
  stage_state state() const;
  /// The stage's part of the node's hang report.
  std::string full_report() const;

  /// Returns what stage_core::on() does.
  std::span<const action> notify_core(const event& e);
  void request_decision();
  template <class Message>
  void send_to_ranks(const Message& m);

  const replica_id replica_;
  const stage_id stage_;
  std::atomic<bool> is_quick_;  ///< true during a step
  const actor_ref job_;
  const std::shared_ptr<run_context> context_;
  stage_core core_;
  std::vector<actor_ref> ranks_;
  metrics::stage_counters& counters_;
  stage_ledger ledger_;
  stage_phase phase_ = stage_phase::idle;
  std::size_t ranks_to_update_ = 0;  ///< in phase updating
  step_id step_;
  bool decision_requested_ = false;
  bool is_broken_ = false;  ///< no more decisions: user code has thrown
  /// Arrivals for a step that this stage has not begun yet.
  std::vector<arrived> early_;
  std::optional<wait_record> waiting_;
  /// How a rank spent this step, in nanoseconds.
  struct rank_time {
    std::int64_t busy = 0;
    std::int64_t blocked = 0;
    std::int64_t behind = 0;
    std::int64_t launch_gap = 0;
    /// The time until tasks began that were launched while the rank was free.
    std::int64_t late_begin = 0;
    std::int64_t in_collectives = 0;
    std::int64_t late_end = 0;  ///< by timers
    std::uint32_t launches = 0;
    std::int64_t in_backward = 0;  ///< in B and BW
    std::int64_t in_weight = 0;    ///< in launches of W
    std::uint32_t weights = 0;     ///< W completed
    /// When the rank became free, and `waited_` at that time; 0 before its first task.
    std::int64_t free_since = 0;
    std::int64_t waited_before = 0;
  };
  std::vector<rank_time> times_;
  /// Total time in which this stage had nothing to launch, over all steps.
  std::int64_t waited_ = 0;
  stage_step_ended outcome_;
  rank_set ranks_ended_ = 0;
  std::vector<std::string> transcript_;
};

}  // namespace rrfp::actors

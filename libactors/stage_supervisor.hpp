/// The supervisor of a stage: owns its core and is the only one to drive it.
///
/// Handlers only record. One with something new for the core posts `decide_now` to itself, once, so
/// that all that is already in the mailbox is seen before the core chooses.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/schedule/stage_core.hpp>

#include "caf_compat.hpp"
#include "messages.hpp"
#include "run_context.hpp"
#include "stage_ledger.hpp"

namespace rrfp::actors {

/// What a supervisor is made of.
struct stage_parts {
  replica_id replica;
  stage_config config;
  std::unique_ptr<policy> hint;
  /// Bytes of a microbatch's slot; empty: not counted.
  std::function<std::uint64_t(step_id, microbatch_id)> slot_bytes;
  /// Its own entry of the run's.
  metrics::stage_counters* counters = nullptr;
};

class stage_supervisor : public actor_base {
 public:
  stage_supervisor(caf::actor_config& config, stage_parts parts, caf::actor job,
                   std::shared_ptr<run_context> context);

  caf::behavior make_behavior() override;
  /// Ranks and supervisor refer to each other; here the circle ends.
  void on_exit() override { ranks_.clear(); }

 private:
  void on_stage_ranks(stage_ranks& m);
  void begin(const begin_step& m);
  void on_arrived(const arrived& m);
  void on_launch_done(const launch_done& m);
  void count_time(const launch_done& m);
  void on_rank_step_ended(rank_step_ended& m);
  void choose();
  /// Calls what calls functions of the program's own: what they throw ends the job.
  template <class Work>
  void guarded(Work work);
  void perform(const rrfp::launch& l);  // CAF actors have a launch() of their own
  void perform(const rrfp::wait& w);
  void end_wait(std::int64_t now);
  void count_gauges();
  std::string describe() const;
  stage_state state() const;
  /// All that is known here, for the report of the node.
  std::string full_report() const;

  void notify_core(const event& e);
  void request_decision();
  template <class Message>
  void send_to_ranks(const Message& m);

  const replica_id replica_;
  const stage_id stage_;
  const std::function<std::uint64_t(step_id, microbatch_id)> slot_bytes_;
  const caf::actor job_;
  const std::shared_ptr<run_context> context_;
  stage_core core_;
  std::vector<caf::actor> ranks_;
  metrics::stage_counters& counters_;
  stage_ledger ledger_;
  stage_phase phase_ = stage_phase::idle;
  step_id step_;
  bool decision_requested_ = false;
  bool is_broken_ = false;  ///< nothing is decided any more
  /// Arrivals for a step that this stage has not been told to begin yet.
  std::vector<arrived> early_;
  std::optional<wait_record> waiting_;
  /// Where the time of a rank went in this step, in nanoseconds.
  struct rank_time {
    std::int64_t busy = 0;
    std::int64_t blocked = 0;
    std::int64_t launch_gap = 0;
    /// Since when it is free, and `waited_` then; 0 before its first task.
    std::int64_t free_since = 0;
    std::int64_t waited_before = 0;
  };
  std::vector<rank_time> times_;
  /// That this stage had nothing to launch, over all steps.
  std::int64_t waited_ = 0;
  stage_step_ended outcome_;
  rank_set ranks_ended_ = 0;
  std::vector<std::string> transcript_;
};

}  // namespace rrfp::actors

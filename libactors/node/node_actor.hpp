/// The actor of a node: spawns the stages and ranks that this node hosts, and stops them at the
/// end.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "control/caf_compat.hpp"
#include "control/messages.hpp"
#include "control/run_context.hpp"
#include "stage/stage_supervisor.hpp"
#include "stage/tp_rank.hpp"

namespace rrfp::actors {

/// What a node hosts: the supervisors of stages whose rank 0 is here, and ranks.
struct node_parts {
  std::vector<stage_parts> stages;
  std::vector<rank_parts> ranks;
};

class node_actor : public actor_base {
 public:
  /// `on_end` is called once, when the job has ended or its node is lost.
  node_actor(caf::actor_config& config, node_parts parts, std::shared_ptr<run_context> context,
             std::function<void(const job_ended&)> on_end);

  caf::behavior make_behavior() override;
  /// Node, stages, ranks and job refer to each other; this breaks the reference cycle.
  void on_exit() override;

 private:
  void on_host_supervisors(const host_supervisors& m);
  void on_host_ranks(const host_ranks& m);
  void interrupt(interrupted m);
  void end(const job_ended& m);
  void request_report(const report_requested& m);
  /// Asks the stages hosted here and writes the report when all have answered.
  void begin_report(const write_report& m);
  void on_state_reported(state_reported& m);
  void on_report_due(const report_due& m);
  void finish_report();

  node_parts parts_;
  const std::shared_ptr<run_context> context_;
  std::function<void(const job_ended&)> on_end_;
  caf::actor job_;
  bool interrupted_ = false;
  std::vector<caf::actor> hosted_;
  std::vector<stage_handle> supervisors_;
  /// A report that waits for the stages' answers.
  struct report {
    std::uint64_t number = 0;
    write_report request;
    std::map<std::pair<replica_id, stage_id>, std::string> stages;
  };
  std::optional<report> report_;
  /// Reports begun so far.
  std::uint64_t reports_ = 0;
};

}  // namespace rrfp::actors

/// The actor of a node: stops the stages and ranks that the node hosts at the end, and writes the
/// node's hang reports.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <rrfp/actors/control/caf_compat.hpp>
#include <rrfp/actors/control/messages.hpp>
#include <rrfp/actors/control/run_context.hpp>

#include "stage_supervisor.hpp"
#include "tp_rank.hpp"

namespace rrfp::actors {

/// What a node hosts: the supervisors of stages whose rank 0 is here, and ranks.
struct node_parts {
  std::vector<stage_parts> stages;
  std::vector<rank_parts> ranks;
};

/// The actors that a node hosts.
struct hosted_actors {
  std::map<stage_key, caf::actor> supervisors;
  std::vector<caf::actor> ranks;
};

/// Spawns them and binds them in the directory of the context.
hosted_actors host(caf::actor_system& system, node_parts parts,
                   const std::shared_ptr<run_context>& context);

class node_actor : public actor_base {
 public:
  /// `on_end` is called once, when the job has ended or its node is lost.
  node_actor(caf::actor_config& config, hosted_actors hosted, actor_ref job,
             std::shared_ptr<run_context> context, std::function<void(const job_ended&)> on_end);

  caf::behavior make_behavior() override;
  /// Node and job refer to each other; this breaks the reference cycle.
  void on_exit() override;

 private:
  void end(const job_ended& m);
  void request_report(const report_requested& m);
  /// Asks the stages hosted here and writes the report when all have answered.
  void begin_report(const write_report& m);
  void on_state_reported(state_reported& m);
  void on_report_due(const report_due& m);
  void finish_report();

  hosted_actors hosted_;
  actor_ref job_;
  const std::shared_ptr<run_context> context_;
  std::function<void(const job_ended&)> on_end_;
  /// A report that waits for the stages' answers.
  struct report {
    std::uint64_t number = 0;
    write_report request;
    std::map<stage_key, std::string> stages;
  };
  std::optional<report> report_;
  /// Reports begun so far.
  std::uint64_t reports_ = 0;
};

}  // namespace rrfp::actors

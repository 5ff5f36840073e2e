/// A job's runs one after another, with all that is shown and left of them.
#pragma once

#include <string>
#include <vector>

#include <rrfp/actors/membership.hpp>
#include <rrfp/actors/session.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/metrics/board.hpp>

#include "interrupt_watch.hpp"

namespace rrfp::apps {

struct training_options {
  std::string json;   ///< a file for the JSON lines; empty: none
  std::string trace;  ///< a file for the trace; empty: none
  /// A folder for reports of who waits for what; empty: they go to stderr alone.
  std::string reports;
  metrics::board* board = nullptr;  ///< where the numbers of the runs are shown; may be null
};

/// The seat of this process among the nodes of the job.
struct node_seat {
  actors::membership* members = nullptr;  ///< null: alone
  std::uint64_t job_token = 0;
  /// Started beside other nodes by one command, which shall give one message.
  bool launched = false;

  /// Whether this node is the one to report how the job ended: node 0, or node 1 the loss of node 0.
  bool tells(actors::ending how, const std::string& message) const {
    if (!launched || leads()) return true;
    return how == actors::ending::node_lost && members->node() == node_id{1} &&
           message.starts_with("node 0 ");
  }
  bool leads() const { return members == nullptr || members->node() == node_id{0}; }
};

/// Refuses what can be known to be wrong before anything starts: the data, the plan, the outputs,
/// and the places of `nodes` nodes. Errors are the user's.
status check_training(const std::vector<job::job>& runs, const training_options& options,
                      std::uint32_t nodes);

/// Trains all of `runs` in turn and prints the table. Returns the exit code of the program.
int train(const std::vector<job::job>& runs, const training_options& options,
          interrupt_watch& interrupts, const node_seat& seat);

}  // namespace rrfp::apps

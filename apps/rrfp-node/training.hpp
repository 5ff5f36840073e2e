/// Trains the runs of a job one after another and writes their outputs.
#pragma once

#include <string>
#include <vector>

#include <rrfp/actors/job_session.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/metrics/board.hpp>

#include "interrupt_watch.hpp"

namespace rrfp::apps {

struct training_options {
  std::string json;   ///< a file for the JSON lines; empty: none
  std::string trace;  ///< a file for the trace; empty: none
  /// A folder for hang reports; empty: they go to stderr only.
  std::string reports;
  metrics::board* board = nullptr;  ///< where the runs publish their counters; may be null
};

struct node_context : actors::job_node {
  /// The launcher started all nodes; then one node reports the end for all.
  bool launched = false;

  /// Whether this node reports how the job ended: node 0 does, or node 1 after the loss of node 0.
  bool reports(actors::ending how) const {
    if (!launched || leads()) return true;
    if (how != actors::ending::node_lost || members->node() != node_id{1}) return false;
    const auto lost = members->loss();
    return lost && lost->node == node_id{0};
  }
};

/// A run with what it reads from this machine, opened and checked.
struct checked_run {
  job::job options;
  actors::job_data data;
  actors::session_setup setup;
};

/// Opens and checks everything that can be checked before training: devices, data, plan,
/// checkpoints, outputs, and the placement on `nodes` nodes.
result<std::vector<checked_run>> check_training(const std::vector<job::job>& runs,
                                                const training_options& options,
                                                std::uint32_t nodes);

/// Trains `runs` one after another and prints the result table. Returns the exit code of the
/// program.
int train(std::vector<checked_run> runs, const training_options& options,
          interrupt_watch& interrupts, const node_context& context);

}  // namespace rrfp::apps

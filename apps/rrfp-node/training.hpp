/// Trains the runs of a job one after another and writes their outputs.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/base/exit_code.hpp>

#include <rrfp/actors/job_session.hpp>
#include <rrfp/actors/recovery.hpp>
#include <rrfp/actors/run_start.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/metrics/board.hpp>

#include "interrupt_watch.hpp"
#include "progress.hpp"
#include "results.hpp"

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
  /// Null: a node that was declared lost joins again.
  std::shared_ptr<const actors::process_standing> standing{};

  /// This process was declared lost, so another one may have its place.
  bool is_fenced() const { return standing != nullptr && standing->is_lost(); }

  /// Whether this node reports how a run ended: node 0 does, or node 1 after the loss of node 0.
  bool reports(const actors::run_result& r) const {
    if (!launched || leads()) return true;
    if (r.how != actors::ending::node_lost || members->node() != node_id{1}) return false;
    const auto lost = members->loss();
    return r.drained == node_id{0} || (lost && lost->node == node_id{0});
  }
};

/// A run with what it reads from this machine, opened and checked.
struct checked_run {
  job::job options;
  std::shared_ptr<const actors::job_model> model;  ///< null: an emulated device
  actors::session_setup setup;
};

/// Opens and checks everything that can be checked before training: devices, data, plan,
/// checkpoints, outputs, and the placement on `nodes` nodes.
result<std::vector<checked_run>> check_training(const std::vector<job::job>& runs,
                                                const training_options& options,
                                                std::uint32_t nodes);

/// Trains the runs one after another and prints the result table.
class training {
 public:
  training(std::vector<checked_run> runs, training_options options, interrupt_watch& interrupts);
  training(const training&) = delete;
  training& operator=(const training&) = delete;
  ~training();

  /// After go_on(): the loss after which the job may go on, for the user; empty: it is over.
  const std::string& loss() const { return card_.lost; }
  /// After go_on(): a node has left between two steps, this one or another.
  bool is_handed_over() const { return is_handed_over_; }
  /// Whether the job goes on after another loss.
  bool may_recover() const;

  /// Agrees with the other nodes and trains to the end of the last run, to a loss, or until a node
  /// leaves. Returns the exit code of the program.
  int go_on(node_context context);
  /// Since when the job waits for a lost node; only after a loss.
  std::chrono::steady_clock::time_point lost_at() const { return lost_at_.value(); }

  /// A node was lost outside of go_on(). Returns the exit code of the program.
  int lose(const std::string& why, const node_context& context);

 private:
  struct prepared_run;

  result<actors::run_start> agree(const node_context& context);
  /// Whether a run that ended with this code goes on later, or in the process that takes the place
  /// of this one: then its outputs are written there.
  bool goes_on_elsewhere(int code, const node_context& context) const {
    return !card_.lost.empty() || code == exit_drained || context.is_fenced();
  }
  /// What other nodes have finished while this one was lost.
  void take_over(const recovery_point& from, const node_context& context);
  /// Keeps the summary of a run that is over, and drops what recovery needs of it.
  void finish_run(run_record summary);
  /// `continues`: the file already has lines of this training.
  status open_log(const node_context& context, bool continues);
  /// Sets up the current run and opens the log, without starting it. An error is the same on all
  /// nodes.
  result<prepared_run> prepare(const checked_run& checked, const node_context& context,
                               actors::run_start start);
  /// `j` and `display` must outlive the session.
  void set_callbacks(actors::session_setup& setup, const job::job& j, progress& display,
                     bool leads);
  /// Adds up what the loss has cost; `first`: the steps that are complete, where the run goes on.
  /// Returns a line for the user.
  std::string note_recovery(const recovery_point& from, const job::job& j, std::uint64_t first,
                            bool resumes);
  /// Returns the exit code of the run.
  int train(const checked_run& checked, const node_context& context, actors::run_start start);
  /// A run could not begin.
  int fail(const error& why, const node_context& context);
  /// Reports why a run failed, on one of the nodes of a launcher, or notes a loss after which the
  /// job may go on. Returns the run's exit code.
  int end_with(const actors::run_result& r, const std::string& prefix, const node_context& context);
  /// The results of all runs, on node 0. `code`: of the last one.
  int write_outputs(int code);

  std::vector<checked_run> runs_;
  const training_options options_;
  interrupt_watch& interrupts_;
  std::unique_ptr<json_log> log_;
  std::vector<finished_run> finished_;
  std::vector<std::unique_ptr<actors::trace_recorder>> traces_;
  std::vector<actors::titled_trace> titled_;
  std::vector<actors::recovery_record> recoveries_;  ///< of the current run
  bool unsaved_ = false;
  bool written_ = false;  ///< the outputs
  bool is_handed_over_ = false;
  bool trace_complete_ = true;
  std::string printed_report_;

  /// What this node brings to the next agreement.
  recovery_card card_;
  std::shared_ptr<actors::copy_store> copies_ = std::make_shared<actors::copy_store>();
  std::optional<std::chrono::steady_clock::time_point> lost_at_;
};

}  // namespace rrfp::apps

/// What rrfp-node does around the runs of a job: it prints, writes files and takes signals. The
/// library joins the nodes and goes on after losses (rrfp/actors/run_job.hpp).
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <rrfp/actors/run_job.hpp>
#include <rrfp/base/exit_code.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/metrics/board.hpp>

#include "commands.hpp"
#include "interrupt_watch.hpp"
#include "progress.hpp"
#include "results.hpp"

namespace rrfp::apps {

/// This process as a node.
struct node_seat {
  join_options join{};
  node_id node{0};
  std::uint32_t nodes = 1;
  std::string description{};
};

/// Trains the runs one after another and prints the result table.
class training : public actors::job_program {
 public:
  /// `options`: its outputs; `reports` is a folder or empty. `board`: where the runs publish their
  /// counters.
  training(const job::recovery_options& recovery, command_options options, metrics::board& board,
           interrupt_watch& interrupts, node_seat seat);
  ~training() override;

  /// Says why the nodes did not come together, if so. Returns the exit code of the program.
  int end(const job::job& j, const actors::job_outcome& outcome);

 private:
  void on_joining(std::function<void()> interrupt, bool handed_over) override;
  actors::membership_options options_of_join() override;
  bool joins_once() override { return interrupts_.is_draining(); }
  /// Says what a join waits for: soon, whenever that changes, and once a minute.
  void on_waiting(const std::string& text) override;
  bool has_joined(bool well) override;
  void on_agreed(const actors::job_node& node, const recovery_point& from) override;
  void take_over(const job::job& j, const actors::run_summary& summary,
                 const actors::job_node& node) override;
  status prepare(const actors::begun_run& begun, actors::session_setup& setup) override;
  actors::run_result train(const actors::begun_run& begun, actors::session& session) override;
  void on_run_end(const actors::run_end& end) override;
  actors::ending write_outputs(actors::ending how) override;
  void on_finishing(std::function<void()> interrupt) override;
  void at_the_end(const actors::job_outcome& outcome) override;

  /// `continues`: the file already has lines of this training.
  status open_log(const actors::job_node& node, bool continues);
  /// `j` must outlive the session.
  void set_callbacks(actors::session_setup& setup, const job::job& j, bool leads);
  void log_begin(const actors::begun_run& begun);
  void set_interrupts(const actors::begun_run& begun, actors::session& session);
  /// Whether this node says how a run ended: of a launcher's nodes one reports for all, node 0, or
  /// node 1 after the loss of node 0.
  bool reports(const actors::run_end& end) const;
  /// Adds a run that is over to the outputs.
  void add_run(const job::job& j, const actors::run_result& r);
  /// Writes the outputs if the job has ended while it waited for a replacement.
  void end_held_run(actors::ending how);

  const job::recovery_options recovery_;
  const command_options options_;
  metrics::board& board_;
  interrupt_watch& interrupts_;
  const node_seat seat_;
  /// The last line about a wait; at first, when the wait began.
  struct said_line {
    std::string text{};
    std::chrono::steady_clock::time_point at = std::chrono::steady_clock::now();
  } said_;
  std::vector<std::uint32_t> shares_;  ///< of the replicas in the last step; empty: their own
  std::unique_ptr<json_log> log_;
  bool logs_ = false;  ///< opened as that of the leader
  std::vector<finished_run> finished_;
  /// On the leader: the run that ended with the loss of a node, until the next one begins.
  std::optional<std::pair<job::job, actors::run_result>> held_;
  std::vector<std::unique_ptr<actors::trace_recorder>> traces_;
  std::vector<actors::titled_trace> titled_;
  bool lacks_output_ = false;  ///< the last checkpoint of a run, or a part of its trace
  std::string printed_report_;

  // Of the current run.
  std::unique_ptr<progress> display_;
  std::unique_ptr<actors::trace_recorder> trace_;
  std::vector<std::string> notes_;  ///< printed before it starts
};

}  // namespace rrfp::apps

/// Runs a job on this process to its end, alone or as one of its nodes, across losses of nodes.
///
///   class my_program : public job_program { ... };                // hooks; each has a default
///   my_program program;
///   const job_outcome end = run_job({job, runs, place, &framework}, program);
///
/// The process joins the others; all agree on the run that comes next and where it goes on
/// (run_start.hpp), open its session and train. After the loss of a node, those that are left join
/// again with its replacement, for recovery.max_restarts losses, and go on from copies in their
/// memory, from a checkpoint, or from the beginning. When all runs are over, node 0 writes the
/// outputs, and all nodes agree that the job is over: a replacement that comes later is told so.
///
/// The program gives what differs from one program to the next: how a session trains, what is
/// printed and written, and how the user interrupts. Its hooks are called on the thread of
/// run_job(), unless they say otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <rrfp/actors/framework.hpp>
#include <rrfp/actors/job_cluster.hpp>
#include <rrfp/actors/job_session.hpp>
#include <rrfp/actors/run_start.hpp>
#include <rrfp/actors/trace.hpp>

namespace rrfp::actors {

/// A run that begins or goes on, as all nodes have agreed.
struct begun_run {
  const opened_run& run;
  job_node node;
  const run_start& start;
  /// The losses after which this process has gone on with this run. If the nodes have just agreed
  /// to go on, which start.from.lost says, that is the last one.
  std::span<const recovery_record> recoveries;
  recovery_totals totals;    ///< of the job, this loss included
  bool may_recover = false;  ///< the job goes on after another loss

  bool goes_on() const { return !start.from.lost.empty(); }
  /// Steps that are complete.
  std::uint64_t first_step() const { return start.setup.first_step(); }
  /// An earlier process may have written outputs of this run. Nodes that were all lost at once do
  /// not know of a loss.
  bool continues() const {
    return goes_on() || (start.setup.resume && run.options.recovery.max_restarts > 0);
  }
};

/// What follows when a run has ended, or could not begin.
enum class aftermath : std::uint8_t {
  over,         ///< it is done, or it has failed for good, and the job with it
  joins_again,  ///< a node was lost or has left: this process joins the others again
  leaves,       ///< this node was drained: another process takes its place
  fenced,       ///< this process was declared lost: another one may have its place
};

struct run_end {
  const run_result& result;
  aftermath next;
  job_node node;
  const begun_run* run;     ///< null: it has not begun
  std::uint64_t steps = 0;  ///< that are complete
  recovery_totals totals;
};

/// How the job ended for this process.
struct job_outcome {
  ending how = ending::done;
  std::string message;  ///< what failed and where; empty otherwise
  /// The nodes did not join. Otherwise job_program::on_run_end() was called for the end.
  bool is_not_joined = false;
  /// The loss after which the nodes should have joined again; empty: they failed to join at first.
  std::string lost;
  /// The job was over before this process had joined.
  bool is_late = false;
  /// This node was drained: another process takes its place. `how` is node_lost.
  bool has_left = false;
};

class job_program {
 public:
  job_program() = default;
  job_program(const job_program&) = delete;
  job_program& operator=(const job_program&) = delete;
  virtual ~job_program() = default;

  /// This process waits for the other nodes; `handed_over`: because a node has left, this one or
  /// another. The program may call `interrupt` from any thread until has_joined(), to end the wait,
  /// and on the thread of on_waiting().
  virtual void on_joining(std::function<void()> /*interrupt*/, bool /*handed_over*/) {}
  /// What the program adds to an attempt to join: inherited descriptors, `version`, `description`,
  /// `on_refused` and `on_gone_early`. The library sets the rest.
  virtual membership_options options_of_join() { return {}; }
  /// Whether the attempt is the last one even if other nodes are missing.
  virtual bool joins_once() { return false; }
  /// A line about what the wait is for, about once a second; empty: for the others to open the run.
  virtual void on_waiting(const std::string&) {}
  /// The wait is over. False: the user has interrupted the program; then the job ends here.
  virtual bool has_joined(bool /*well*/) { return true; }

  /// All nodes have joined and agreed where the job begins or goes on.
  virtual void on_agreed(const job_node&, const recovery_point&) {}
  /// The run has ended on the other nodes while this process was not there.
  virtual void take_over(const job::job& /*run*/, const run_summary&, const job_node&) {}

  /// Sets the hooks of a session, and opens what the program needs for it. Error: all nodes end.
  virtual status prepare(const begun_run&, session_setup&) { return success(); }
  /// Calls session::run(). The program may interrupt the session meanwhile.
  virtual run_result train(const begun_run&, session& s) { return s.run(); }
  /// A run has ended, or could not begin. Also called if a node is lost after the last run.
  virtual void on_run_end(const run_end&) {}

  /// On node 0, once: all runs are over, or one has failed. Returns how the job ends: `how`, or
  /// ending::failed if an output is missing.
  virtual ending write_outputs(ending how) { return how; }
  /// This process waits until all nodes know that the outputs are written, for ten minutes at most.
  /// The program may call `interrupt` from any thread until it gets an empty one.
  virtual void on_finishing(std::function<void()> /*interrupt*/) {}
  /// All nodes know the end, and nobody is left who could tell it to a replacement of this process.
  /// Called on a thread of the membership; it may end the process.
  virtual void at_the_end(const job_outcome&) {}
};

struct job_on_nodes {
  job::job job;                  ///< as loaded; equal on all nodes
  std::vector<opened_run> runs;  ///< one after another, one at least; the memory of each is freed
  /// Nothing: this process is the only one, and joins nobody.
  std::optional<launch_place> place;
  const actors::framework* framework = nullptr;  ///< null only without a place
  /// A process that was declared lost ends, because another one may have its place. False: whoever
  /// starts processes starts none while an earlier one lives.
  bool is_fenced = true;
  /// Node 0 writes outputs at the end, for which the others wait.
  bool has_outputs = true;
};

/// Blocks until the job has ended for this process.
job_outcome run_job(job_on_nodes j, job_program& program);

/// What run_job() does, step by step, for a program whose own loop asks for the steps of a run:
///
///   auto member = job_member::make({job, runs, place, &framework}, program);
///   while (member->begin()) member->end(member->session().run());
///
/// One thread at a time may call it.
class job_member {
 public:
  /// `program` must outlive it.
  static std::unique_ptr<job_member> make(job_on_nodes j, job_program& program);
  job_member() = default;
  /// The other nodes report this one as lost if the job has not ended.
  virtual ~job_member() = default;
  job_member(const job_member&) = delete;
  job_member& operator=(const job_member&) = delete;

  /// Joins the other nodes, unless this process is joined, agrees with them on the next run, and
  /// opens its session. False: the job has ended for this process, as outcome() says.
  virtual bool begin() = 0;
  /// The run that has begun, and its session; until end().
  virtual const begun_run& run() const = 0;
  virtual actors::session& session() const = 0;
  /// The session has run. It is destroyed.
  virtual aftermath end(const run_result& r) = 0;
  virtual const job_outcome& outcome() const = 0;
};

}  // namespace rrfp::actors

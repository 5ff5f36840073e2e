/// A session whose steps a program asks for, alone or with the other processes of the job. It knows
/// no framework: rrfp::pipeline (libtorch) and the Python package are made of it.
///
///   auto loop = std::make_shared<training_loop>(job, options);
///   loop->open(framework, setup);            // joins the others, opens the session
///   loop->pass(step_purpose::training, {});  // one step, begun by the leading process
///   loop->recover();                         // after the loss of a process: joins again
///   loop->finish();
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <rrfp/actors/framework.hpp>
#include <rrfp/actors/run_job.hpp>
#include <rrfp/actors/session.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/job/node_places.hpp>
#include <rrfp/membership/launch_environment.hpp>
#include <rrfp/metrics/board.hpp>

namespace rrfp::actors {

class caller_queue;
class hook_thread;

/// All may be empty. What they throw is kept and does not affect the run.
struct loop_hooks {
  /// Called by pass() before it returns.
  std::function<void(const step_summary&)> on_step;
  /// Called after every save, from a thread of the loop, one call at a time with on_report.
  std::function<void(const checkpoint_report&)> on_checkpoint;
  /// Called with each hang report. Empty: stderr.
  std::function<void(const std::string&)> on_report;
  /// Called with one line for each note to the user, on the thread that calls the loop. Empty:
  /// stderr.
  std::function<void(const std::string&)> on_note;
  /// Called each time before the ranks of this process are made; after a loss they may be different
  /// ranks.
  std::function<void()> before_ranks;
};

struct loop_options {
  /// The node number and rendezvous of this process; empty: from the environment.
  std::optional<launch_place> place;
  /// The version of the program, equal on all processes.
  std::string version;
  /// The ranks of this process compute on the thread that calls pass().
  bool computes_on_caller = false;
  loop_hooks hooks;
};

/// A step or an evaluation that all processes have completed.
struct passed_step {
  step_id id;
  step_summary summary;
  /// "on_step threw: no such file"; includes the other hooks since the last step. Empty if none
  /// threw.
  std::string hook_failure;
};

/// How long a process waits for the batch of a step that others have begun, and for functions of
/// the program that may never return.
std::chrono::milliseconds patience_of(const job::job& j);

/// Shared with its threads, because a task that never returns cannot be ended. One thread at a time
/// may call it, except for interrupt(), report() and metrics_text().
class training_loop : public std::enable_shared_from_this<training_loop> {
 public:
  training_loop(job::job j, loop_options options);
  training_loop(const training_loop&) = delete;
  training_loop& operator=(const training_loop&) = delete;
  ~training_loop();

  /// Finds the place of this process, joins the others unless it is alone, opens the session and
  /// resumes from a checkpoint as [checkpoint] says. The hooks of `setup` that serve the loop are
  /// set here. `kept` lives until the run has ended. `look`: as in recover().
  status open(std::shared_ptr<const framework> framework, session_setup setup,
              std::shared_ptr<const void> kept = nullptr, const std::function<void()>& look = {});
  /// After pass() has returned error_kind::node_lost, if recovery.max_restarts allows it: joins the
  /// others and the replacement again, makes the ranks anew, and goes on after the newest step of
  /// which the state of all ranks is held, or from a checkpoint. steps() says which one. `look`: as
  /// in pass(), called about once a second. Error: no other node came, or the state is lost.
  status recover(const std::function<void()>& look = {});
  /// Ends the run; the other processes are told `why`. A thread that cannot be ended keeps the loop
  /// alive.
  void close(const std::string& why = "has closed the pipeline");

  /// Locks out other calls. Error: another call runs.
  result<std::unique_lock<std::mutex>> begin_call();
  /// `microbatches`: those of the step, which the leading process decides; empty: as many as the
  /// job says. `feed`: called with the key of the step before the ranks here begin it, though other
  /// processes may have begun it. `look`: called about every
  /// 50 ms while this thread waits; what it throws ends the run and is thrown again. May be empty.
  result<passed_step> pass(compute::step_purpose purpose, microbatch_counts microbatches = {},
                           const std::function<void(step_id)>& feed = {},
                           const std::function<void()>& look = {});
  /// Calls `work(compute)` for each rank here, between steps. Returns the first failure.
  status for_each_compute(std::function<status(compute::rank_compute&)> work);
  /// Returns when the state has been copied, so that it may change. `look`: as in pass().
  status save(const std::function<void()>& look = {});
  result<run_summary> finish(const std::function<void()>& look = {});
  void interrupt();
  void report(std::string why);
  std::string metrics_text() const;

  const job::job& config() const { return job_; }
  std::uint64_t steps() const { return steps_; }
  bool leads() const { return leads_; }
  /// Whether this process has the virtual stage, of any replica.
  bool hosts(virtual_stage_id vs) const;
  bool is_over();
  /// Why there is no result.
  error failure() const;
  /// Error: the run has failed, or this process has finished it. The others may have.
  status check_usable();
  void note(const std::string& line);

 private:
  using clock = std::chrono::steady_clock;
  class program;

  /// Whether a step may have so many microbatches.
  status check(const microbatch_counts& microbatches) const;
  /// Joins the others, begins the run on a thread of its own, and waits until the ranks have the
  /// state that it goes on from.
  status begin(const std::function<void()>& look);
  /// Until on_state_ready has been called once more, or the run is over. False: not until `limit`.
  bool wait_for_state(const std::function<void()>& look,
                      std::optional<clock::time_point> limit = {});
  /// The session has ended; the job with it, or it goes on.
  aftermath end_session(const run_result& r);
  /// Ends the run on all processes, which are told that it was this one.
  void abandon(const std::string& why, error_kind kind);
  void note_start(const begun_run& begun);
  void set_hooks(session_setup& setup);
  /// Blocks a rank until pass() has fed the step, also a rank without data: a program that still
  /// prepares its batch may draw from generators that forwards would disturb. Throws after a limit,
  /// or if the run is over.
  void wait_for_batch(step_id step, const std::function<void()>& meanwhile);
  /// Ends the training if other processes have begun another step than this one for too long.
  void check_begun(step_id own, std::optional<clock::time_point>& differs_since);
  /// Computes meanwhile, if this thread does. `is_done` is called with mutex_ locked, `look`
  /// without.
  void wait_until(const std::function<bool()>& is_done, const std::function<void()>& look);
  /// Waits until nothing runs any more, up to a limit. False if something has not returned.
  bool wait_for_rest();
  /// Notes failed saves and what hooks threw since the last call, and returns the latter.
  std::string report_failures();
  void run();
  /// Only the first call has an effect.
  void end(run_result how);
  void notify();

  /// A step or an evaluation, and its number.
  using pass_name = std::pair<compute::step_purpose, std::uint64_t>;

  const job::job job_;
  loop_options options_;
  const std::shared_ptr<caller_queue> caller_;  ///< null: ranks have threads of their own
  std::optional<job::node_places> places_;      ///< of several processes
  node_id node_;
  std::atomic<bool> leads_ = false;
  metrics::board board_;
  std::shared_ptr<const framework> framework_;
  std::weak_ptr<const void> kept_;
  std::unique_ptr<program> program_;
  std::unique_ptr<job_member> member_;
  std::thread runner_;
  std::uint64_t steps_ = 0;
  std::uint64_t evaluations_ = 0;
  bool has_trained_ = false;
  bool accumulates_ = false;  ///< gradients wait for their update
  bool is_finished_ = false;

  std::mutex calls_;  ///< while a call uses the ranks

  std::mutex mutex_;
  std::condition_variable changed_;
  session* session_ = nullptr;      ///< of the run
  std::optional<step_id> fed_;      ///< the last step that pass() has fed
  std::optional<step_id> awaited_;  ///< for whose batch ranks wait
  std::map<pass_name, step_summary> summaries_;
  std::uint64_t ready_ = 0;  ///< calls of on_state_ready that nothing has waited for
  bool over_ = false;
  run_result ended_;                ///< once over_
  bool is_at_rest_ = false;         ///< over_, and nothing runs any more
  std::string failed_save_;         ///< the last one
  std::vector<std::string> notes_;  ///< for on_note
  std::unique_ptr<hook_thread> hooks_;
};

}  // namespace rrfp::actors

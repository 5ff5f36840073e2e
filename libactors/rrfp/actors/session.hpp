/// A training run: set it up, run it to the end, and get a callback after every step.
///
///   auto opened = session::open(setup);   // error: bad input, nothing has started
///   auto result = opened.value()->run();  // blocks; interrupt() from another thread ends the run
///
/// A job actor runs the steps; each stage has a supervisor and its ranks. A session may span the
/// nodes of a cluster: each node opens it with the same setup and its own place; node 0 runs the
/// job actor and gets the whole result.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/actors/checkpointing.hpp>
#include <rrfp/actors/job_start.hpp>
#include <rrfp/actors/recovery.hpp>
#include <rrfp/actors/run_summary.hpp>
#include <rrfp/actors/trace.hpp>
#include <rrfp/compute/rank_compute.hpp>
#include <rrfp/compute/rank_group.hpp>
#include <rrfp/core/job_core.hpp>
#include <rrfp/core/memory.hpp>
#include <rrfp/core/policy.hpp>
#include <rrfp/core/stage_core.hpp>
#include <rrfp/core/stragglers.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/job/node_places.hpp>
#include <rrfp/membership/membership.hpp>
#include <rrfp/metrics/board.hpp>
#include <rrfp/transport/transport.hpp>

namespace rrfp::actors {

/// The form in which other nodes of the same version keep a summary. The stages are details, which
/// may be missing when it comes back.
run_record to_record(run_summary s);
result<run_summary> summary_of(const run_record& r);

/// How a run ends.
using ending = job_end;

struct run_result : job_action::end {
  /// Sums up the complete steps; weights_xxh64 only when done. Empty on nodes other than 0, unless
  /// the run is done and makes copies for recovery.
  run_summary summary{};
  /// By stage, lines of rrfp/core/transcript.hpp; only with record_transcripts.
  std::vector<std::vector<std::string>> transcripts{};
  /// Which nodes are missing in the trace, and why. Empty: none, or there is no trace.
  std::string trace_gaps{};
};

struct straggler_report {
  straggler what;
  std::uint64_t step = 0;  ///< complete steps
  /// The nodes of its ranks; empty: this process runs all.
  std::vector<node_id> nodes;
};

/// A device that computes nothing: its tasks take time, its messages and slots have a size.
struct emulated_device {
  /// In milliseconds, without injected delays. Called concurrently.
  std::function<double(step_id, const rank_address&, const task&)> task_ms;
  /// Returns the size of the message that carries the input of the task (F or B) to the virtual
  /// stage. Called concurrently.
  std::function<std::int64_t(step_id, replica_id, virtual_stage_id, const task&)> message_bytes;
  std::int64_t tokens = 0;  ///< of a microbatch
};

class caller_queue;
class rank_devices;
struct device_request;

/// Where a rank computes.
struct rank_place {
  rank_address address;
  /// The tensor-parallel ranks of its stage; null: it is alone.
  std::shared_ptr<compute::rank_group> group;
  /// Null: it computes on the host.
  const rank_devices* devices = nullptr;
};

struct session_setup {
  /// What this node lacks for the run: open() fails with it, on all nodes.
  status ready = success();

  pipeline_shape shape;
  std::uint32_t ranks = 1;     ///< tensor-parallel, of each stage
  std::uint32_t replicas = 1;  ///< data-parallel copies
  dispatch_rule rule;
  std::uint32_t lookahead = 0;
  /// How long idle threads of stages and ranks poll for work before they sleep.
  std::chrono::microseconds spin{0};
  /// Memory limits, by stage.
  std::vector<memory_limit> limits;
  /// Bytes of the slot of a microbatch of a replica, whoever runs it; empty: not counted.
  std::function<std::uint64_t(step_id, replica_id, stage_id, microbatch_id)> slot_bytes;

  job::train_options train;
  /// Each step is started by session::demand(); their number is not limited.
  bool on_request = false;
  /// Returns the numbers of microbatches of a step that was demanded without numbers; an empty
  /// result stands for those of the shape. May be empty. Called on node 0.
  std::function<microbatch_counts(step_id)> microbatches;
  /// Replicas take microbatches of those that have turned out to be slow (share_planner).
  bool measures_shares = false;
  /// Who runs the microbatches of a step, in place of what share_planner says. May be empty. Called
  /// on node 0.
  std::function<microbatch_shares(step_id, const microbatch_counts&)> shares;
  /// The learning rate of a step (from 1), in place of that of `train`. May be empty. Called on
  /// node 0.
  std::function<double(std::uint64_t step)> lr;
  /// Makes the compute of a rank of this process, with libtorch: rrfp/torch_actors/torch_model.hpp.
  /// Empty only with `emulated`.
  std::function<result<std::shared_ptr<compute::rank_compute>>(const session_setup&,
                                                               const rank_place&)>
      make_compute;
  /// What this process tells all others once its ranks are made; may be empty.
  std::function<result<std::string>()> tell;
  /// Called in each process with what all have told; without a cluster, with its own text. Judges
  /// the same texts in the same way, so that all processes fail or none does. Not empty with
  /// `tell`.
  std::function<status(const std::vector<std::string>&)> hear;
  /// Called on the thread of each rank before it begins a step; may wait until the program has
  /// given the batch of the step, and calls `meanwhile` every few milliseconds while it waits. What
  /// it throws fails the run. May be empty.
  std::function<void(step_id, const std::function<void()>& meanwhile)> before_step;
  /// Whether the program has given the batch of the step, for hang reports. Called concurrently.
  /// Empty: the program gives no batches.
  std::function<bool(step_id)> has_batch;
  /// The states of the ranks name the parameters of the model: a checkpoint may have no others.
  bool names_parameters = false;

  /// Evaluations between the training steps: those of `every` steps, and after the last one. Their
  /// batches are the evaluation steps of the data, numbered from 0 through the run. Unused with
  /// on_request.
  std::optional<job_core_options::evaluating> evaluation;
  /// Nothing: no checkpoints. Not with an emulated device.
  std::optional<checkpoint_setup> checkpoint;
  /// The checkpoint to resume from, the same on every node; nothing: the run starts at step 1. The
  /// model must be the same; stages and ranks may differ.
  std::optional<checkpoint::found_checkpoint> resume;
  /// Nothing: no copies of the state are made. Used in a cluster only. If it goes on from copies,
  /// it does not resume from a checkpoint.
  std::optional<recovery_setup> recovery;
  /// What losses of nodes have cost the job so far, for the metrics.
  recovery_totals losses;

  /// Of all replicas, in the order replica, stage, rank.
  std::vector<rank_address> all_ranks() const {
    std::vector<rank_address> all;
    for (std::uint32_t d = 0; d < replicas; ++d)
      for (std::uint32_t s = 0; s < shape.stages; ++s)
        for (std::uint32_t r = 0; r < ranks; ++r)
          all.push_back({stage_id{s}, rank_id{r}, replica_id{d}});
    return all;
  }
  /// Steps that are complete before the run.
  std::uint64_t first_step() const {
    if (recovery && recovery->from.has_copies()) return recovery->from.record.step;
    return resume ? resume->contents.step : 0;
  }

  injected_delays delays;
  /// Replaces make_compute.
  std::optional<emulated_device> emulated;
  /// Opens the devices of the ranks of this process; empty: they compute on the host. Not with an
  /// emulated device.
  std::function<result<std::shared_ptr<rank_devices>>(const session_setup&, const device_request&)>
      open_devices;
  /// The ranks of this process compute on the thread that runs this queue, in the place of threads
  /// of their own. May be null. Neither with an emulated device nor with open_devices.
  std::shared_ptr<caller_queue> caller;
  /// If no task finishes for this long, the run ends with a hang report. 0: never.
  double hang_timeout_s = 60;
  bool record_transcripts = false;
  /// Wraps or replaces the transport between ranks, which it receives. Empty: not changed.
  std::function<std::unique_ptr<transport>(std::unique_ptr<transport>)> wrap_transport;
  /// Wraps this transport and its injected delays, for a transport with an output_gate. Empty: not
  /// changed.
  std::function<std::unique_ptr<transport>(std::unique_ptr<transport>)> wrap_outputs;
  /// Filled during the run; may be null. Must outlive the session.
  trace_recorder* trace = nullptr;
  /// The name of the run in metrics and reports.
  std::string name;
  /// Shows the run's counters from its start; may be null. Must outlive the session.
  metrics::board* board = nullptr;
  /// Called on every node, from a thread of the session, with each hang report: after report(), and
  /// when the run hangs. It may only write the text.
  std::function<void(const std::string&)> on_report;
  /// Called once on runs of several nodes, with a line that names the transports.
  std::function<void(const std::string&)> on_connected;
  /// Called on node 0 after every evaluation, as on_step.
  std::function<void(const evaluation_summary&)> on_evaluation;
  /// Called after every step on every node, from a thread of the session. It may call interrupt()
  /// and no other function of the session. `step_ms` is measured on node 0.
  std::function<void(const step_summary&)> on_step;
  /// With on_request: called on every node when the ranks have restored the state that the run goes
  /// on from, and when they have copied it for a save on demand. Until then it must not change.
  std::function<void()> on_state_ready;
  /// Called when the job has ended, with the result that run() will return, before run() waits for
  /// running tasks: a task that never returns blocks run() for ever. On the thread of run().
  std::function<void(const run_result&)> on_ending;
  /// Called after every save, as on_step.
  std::function<void(const checkpoint_report&)> on_checkpoint;
  /// Called on node 0 when copies for recovery could not be made, with the reason.
  std::function<void(const std::string&)> on_copy_failed;
  /// Called on node 0, as on_step, when ranks turn out to be late; not again while they are.
  std::function<void(const straggler_report&)> on_straggler;
};

/// The place of this process in a run of several nodes.
struct cluster {
  /// All nodes have joined. Outlives the session.
  membership* members = nullptr;
  job::node_places places;
  job::transport_options transport;
  /// Its token distinguishes the messages of this job from other jobs', and the epoch those of its
  /// runs from each other.
  job_start start;
  std::uint32_t epoch = 0;
};

using rank_work = std::function<void(const rank_address&, compute::rank_compute&)>;

class session {
 public:
  /// Builds the part of the model hosted here, checks that the parts fit and that the model has
  /// each parameter of the checkpoint (the next one would lose a parameter that it lacks), and
  /// connects the nodes. All nodes of a cluster call this: they all succeed or get the same error,
  /// which names the node. What user functions throw is an error, too.
  static result<std::unique_ptr<session>> open(session_setup setup,
                                               std::optional<cluster> in_cluster = std::nullopt);
  session() = default;
  session(const session&) = delete;
  session& operator=(const session&) = delete;
  virtual ~session() = default;

  /// Trains until train.steps steps are complete, or, with on_request, as demand() says. Can be
  /// called once. Returns when no task runs any more.
  virtual run_result run() = 0;
  /// Ends run() as soon as the running tasks are done. With checkpoints, the first call lets the
  /// running step end and saves it, if it would be lost; the second call does not wait.
  /// Thread-safe, any number of times. Any node may call it; the run ends on all nodes.
  virtual void interrupt() = 0;
  /// Ends run() on all nodes with an error, as soon as the running tasks are done. Thread-safe.
  virtual void abandon(error why) = 0;
  /// This node is told to end. If within some seconds all nodes are, this is interrupt(). Otherwise
  /// run() ends on all nodes after a step, with run_result::drained; the copies for recovery are
  /// those of that step. A run without copies is interrupted. Thread-safe; no effect if the run
  /// ends before.
  virtual void drain() = 0;
  /// Requests a report of who waits for what on every node (on_report); the run continues. The
  /// report contains `why`. Thread-safe, any number of times; no effect before and after run().
  virtual void report(std::string why) = 0;

  /// Calls `work` for each rank of this process, each on the thread of its device, and waits up to
  /// `limit`. Between two steps only. Throws what `work` throws. Error: the run is over, or a rank
  /// still works.
  virtual status for_each_rank(const rank_work& work, std::chrono::milliseconds limit) = 0;

  /// With on_request, on node 0: queues a step, an evaluation, a save (which requires checkpoints),
  /// or the end of run() with ending::done. A step that accumulates leaves its gradients to the
  /// next one that trains. Nothing is saved if no step was trained since the last save, or if
  /// gradients wait. Thread-safe; also before run(). `microbatches`: those of the step; empty:
  /// those of the shape, on each replica.
  virtual void demand(job_demand wanted, microbatch_counts microbatches = {}) = 0;
  /// On other nodes: this process waits for the leader to demand the step, which is a hang if it
  /// takes longer than hang_timeout_s.
  virtual void give_batch(step_id step) = 0;
};

}  // namespace rrfp::actors

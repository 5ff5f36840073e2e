/// A training run from the outside: set up, run to the end, hear of every step.
///
///   auto opened = session::open(setup);           // or an error: bad input, nothing has started
///   auto result = opened.value()->run();          // blocks; interrupt() from another thread ends
///   it
///
/// Inside, a job actor steps the stage supervisors; every stage has a supervisor and its ranks. A
/// session may be spread over the nodes of a cluster: each opens it with the same setup and its own
/// place, node 0 runs the job actor and has the whole result.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/accelerator/platform.hpp>
#include <rrfp/actors/checkpointing.hpp>
#include <rrfp/actors/membership.hpp>
#include <rrfp/actors/trace.hpp>
#include <rrfp/actors/transport.hpp>
#include <rrfp/compute/batch_source.hpp>
#include <rrfp/compute/optimizer.hpp>
#include <rrfp/compute/rank_compute.hpp>
#include <rrfp/compute/rank_group.hpp>
#include <rrfp/compute/stage_module.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/metrics/board.hpp>
#include <rrfp/plan/node_places.hpp>
#include <rrfp/schedule/memory.hpp>
#include <rrfp/schedule/policy.hpp>
#include <rrfp/schedule/stage_core.hpp>

namespace rrfp::actors {

struct step_summary {
  /// Of a training: how many are complete with it. Of an evaluation: which of the run's it is.
  /// From 1 on.
  std::uint64_t step = 0;
  compute::step_purpose purpose = compute::step_purpose::training;
  double loss = 0;  ///< mean over the tokens of the step, in nats
  /// Of every microbatch, those of replica 0 first.
  std::vector<compute::microbatch_loss> losses;
  double gradient_norm = 0;
  double lr = 0;
  std::int64_t tokens = 0;
  double step_ms = 0;
  /// 1 - time in tasks / (stages * time from the first task to the last).
  double bubble_fraction = 0;
};

struct stage_summary {
  memory_use memory;            ///< peaks over the run
  std::int64_t peak_bytes = 0;  ///< activation memory, measured
  /// The most of a rank's device, which other stages may share; zeroes where it has none of its
  /// own.
  accelerator::memory_counts device_memory = {};
  double busy_ms = 0;        ///< in tasks, injected delays included
  double blocked_ms = 0;     ///< in sends that were not received yet (blocking_messages)
  double launch_gap_ms = 0;  ///< free, while the stage waited for nothing: the runtime's own time
};

struct run_summary {
  std::uint64_t first_step = 0;  ///< complete ones before this run, which went on from there
  std::uint64_t steps = 0;       ///< of this run
  double loss_first = 0;
  double loss_last = 0;
  /// Over the bits of the loss of every step (float64), and of every weight at the end.
  std::uint64_t losses_xxh64 = 0;
  std::uint64_t weights_xxh64 = 0;
  double step_ms_p50 = 0;
  double bubble_fraction = 0;  ///< over the whole run
  std::int64_t tokens = 0;
  double seconds = 0;
  std::uint32_t checkpoints = 0;        ///< that were saved
  bool last_checkpoint_failed = false;  ///< the last that was tried: its state is lost with the run
  std::vector<stage_summary> stages;

  std::uint32_t peak_slots() const;
  std::int64_t peak_bytes() const;
  accelerator::memory_counts device_memory() const;
};

enum class ending : std::uint8_t {
  done,
  interrupted,
  bad_input,  ///< data that cannot be read, or a training that has diverged
  failed,
  node_lost,
};

struct run_result {
  ending how = ending::done;
  /// What failed, where; empty otherwise.
  std::string message;
  /// Interrupted, and nothing is lost by that: between two steps, what is complete being saved.
  bool nothing_lost = false;
  /// No task had finished for hang_timeout_s: what runs may never return.
  bool hung = false;
  /// As far as the run came; weights_xxh64 only when done. Empty on nodes other than 0.
  run_summary summary;
  /// One a stage, lines of rrfp/schedule/transcript.hpp, when asked for.
  std::vector<std::vector<std::string>> transcripts;
  /// What the trace lacks of other nodes, and why; empty: nothing, or there is none.
  std::string trace_gaps;
};

/// Injected delays, in milliseconds. Called from many threads at once; empty: none.
struct injected_delays {
  std::function<double(step_id, stage_id, rank_id, const task&)> compute;
  /// Of the message that brings the input of the task (F or B) to the virtual stage.
  std::function<double(step_id, virtual_stage_id, const task&)> link;
  /// What becomes of an attempt to send that message, the first being 0; empty: it arrives. What is
  /// lost is sent again after resend_ms. In one process.
  std::function<attempt_fate(step_id, virtual_stage_id, const task&, std::uint32_t attempt)> fate;
  double resend_ms = 20;
};

/// A device that computes nothing: its tasks take a time, its messages and slots have a size.
struct emulated_device {
  /// In milliseconds, without injected delays. Called from many threads at once.
  std::function<double(step_id, stage_id, rank_id, const task&)> task_ms;
  std::int64_t activation_bytes = 1;  ///< of a message between stages
  std::int64_t tokens = 0;            ///< of a microbatch
};

/// Devices with memory of their own, where the ranks of this machine live.
struct accelerated_devices {
  std::shared_ptr<accelerator::platform> platform;
  /// Those to be used, by number; see accelerator/assignment.hpp.
  std::vector<std::uint32_t> use;
  /// Sums run in the order of the ranks.
  bool deterministic = true;
  /// How ranks sum: over the library of the devices, over host memory, or (nothing) over the first
  /// where every rank that is here has a device of its own.
  std::optional<job::collectives_kind> collectives;
};

struct session_setup {
  pipeline_shape shape;
  std::uint32_t ranks = 1;     ///< tensor-parallel, of each stage
  std::uint32_t replicas = 1;  ///< data-parallel copies, each with the microbatches of `shape`
  dispatch_mode mode = dispatch_mode::ready;
  std::uint32_t lookahead = 0;
  /// Send and receive meet, as in frameworks with fixed schedules: after a task a rank posts its
  /// send together with the receive that its next F or B needs, and does nothing until what it sent
  /// was received. In mode in_order, without lookahead, in one process.
  bool blocking_messages = false;
  /// How long the threads of stages and ranks look for work before they sleep.
  std::chrono::microseconds spin{0};
  /// What each stage may hold, indexed by stage.
  std::vector<memory_limit> limits;
  std::function<std::unique_ptr<policy>(stage_id)> make_policy;
  /// Bytes of a microbatch's slot; empty: not counted.
  std::function<std::uint64_t(step_id, stage_id, microbatch_id)> slot_bytes;

  job::train_options train;
  /// Steps do not follow by themselves, and there may be any number of them: session::train() and
  /// its like ask for each.
  bool on_request = false;
  /// See stage_compute_config.
  bool recompute = false;
  std::function<std::unique_ptr<compute::optimizer>(std::vector<at::Tensor>)> make_optimizer;
  /// The part of a rank; `group` are the tensor-parallel ranks of its stage, null if it is alone.
  std::function<result<std::unique_ptr<compute::stage_module>>(
      virtual_stage_id, std::shared_ptr<compute::rank_group> group)>
      make_chunk;
  /// Numbered over all replicas: replica d has the microbatches from d * m on.
  std::shared_ptr<const compute::batch_source> data;

  /// Nothing: none are made. Not with an emulated device.
  std::optional<checkpoint_setup> checkpoint;
  /// Where the run goes on, the same on every node; nothing: it starts. Cut into stages and ranks
  /// as it may be, the model must be the same.
  std::optional<checkpoint::found> resume;

  injected_delays delays;
  /// Instead of make_chunk and data.
  std::optional<emulated_device> emulated;
  /// Nothing: ranks compute on the host. Not with an emulated device.
  std::optional<accelerated_devices> accelerated;
  /// No task finished for this long: the run ends with a report of who waits for what. 0: never.
  double hang_timeout_s = 60;
  bool record_transcripts = false;
  /// Around or instead of what carries tensors between ranks; gets what would. Empty: that.
  std::function<std::unique_ptr<transport>(std::unique_ptr<transport>)> wrap_transport;
  /// Instead of make_chunk and data: what computes for a rank. Null: as the rest says.
  std::function<result<std::shared_ptr<compute::rank_compute>>(rank_address)> make_compute;
  /// Filled as the run goes; may be null. Must outlive the session.
  trace_recorder* trace = nullptr;
  /// The name of the run, where its numbers and reports are.
  std::string name;
  /// The run's counters are shown there from its start; may be null. Must outlive the session.
  metrics::board* board = nullptr;
  /// Called with what report() asked for and with what the end of a run that hangs leaves: on every
  /// node, from a thread of the session; may write it down and nothing else.
  std::function<void(const std::string&)> on_report;
  /// Called once, with a line on what the nodes talk over, when they are several.
  std::function<void(const std::string&)> on_connected;
  /// Called after every step on every node, from a thread of the session; may call interrupt() and
  /// nothing else of it. On other nodes than 0 `step_ms` is theirs only by and large.
  std::function<void(const step_summary&)> on_step;
  /// Called once the job has ended, with what run() will return, before what still computes is
  /// waited for: a task that never returns keeps run() for ever. From the thread of run().
  std::function<void(const run_result&)> on_ending;
  /// Called after every save, as on_step.
  std::function<void(const checkpoint_report&)> on_checkpoint;
};

/// The part that this process has in a run of several.
struct cluster {
  /// All nodes have joined. Outlives the session.
  membership* members = nullptr;
  plan::node_places places;
  job::transport_options transport;
  /// Tells the messages of this job from those of others, and of its runs from each other.
  std::uint64_t job_token = 0;
  std::uint32_t epoch = 0;
};

class session {
 public:
  /// Builds the part of the model that is hosted here and checks that the parts fit. Errors are the
  /// user's to mend.
  static result<std::unique_ptr<session>> open(session_setup setup,
                                               std::optional<cluster> in_cluster = std::nullopt);
  session(const session&) = delete;
  session& operator=(const session&) = delete;
  ~session();

  /// On every node of a run that goes on, once all have opened it: whether each parameter of the
  /// checkpoint has its place in the model, for the next checkpoint would lose one that has none.
  /// Error: names the tensor, the same on all nodes. Without a cluster open() has looked.
  status check_restored() const;

  /// Trains until train.steps steps are complete, or, with on_request, as it is asked to. Once.
  /// Returns when nothing computes any more.
  run_result run();
  /// Ends run() as soon as the running tasks are done. With checkpoints, the first call lets the
  /// running step end and saves it, if it would be lost; the second does not. Thread-safe, any
  /// number of times. On a node that does not run the job actor: this node leaves, and the job is
  /// over for the others too.
  void interrupt();
  /// Has every node of the run tell on_report who waits for what, and lets it go on. `why` is told
  /// along. Thread-safe, any number of times; without effect before run() and after it.
  void report(std::string why);

  /// With on_request, and on node 0: what is to be done next, after what was asked for before.
  /// Thread-safe; before run() as well.
  void train();
  void evaluate();
  /// Saves, unless nothing was trained since the last save. Needs checkpoints.
  void save();
  /// Ends run() in a good way.
  void finish();

 private:
  class impl;
  explicit session(std::unique_ptr<impl> state);
  std::unique_ptr<impl> impl_;
};

}  // namespace rrfp::actors

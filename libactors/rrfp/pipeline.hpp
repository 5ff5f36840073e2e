/// A pipeline inside your own training loop, with your own model.
///
///   rrfp::pipeline_options options;
///   options.make_stage = [](const rrfp::stage_place& at) {       // one part of the model
///     return rrfp::stage_of(Block(at.index, at.count));     // any torch::nn module
///   };
///   options.loss = [](const torch::Tensor& output, const torch::Tensor& target) {
///     return torch::mse_loss(output, target, torch::Reduction::Sum);
///   };
///   auto job = rrfp::job::load_job("job.toml", rrfp::policies::registry(), {},
///                                  rrfp::job::job_use::embed).value();
///   auto pipeline = rrfp::pipeline::open(job, options).value();
///   while (...) {
///     const auto r = pipeline->step({inputs, targets}).value();
///     std::printf("%f\n", r.loss);
///   }
///   pipeline->finish().value();
///
/// The program also includes rrfp/job/job.hpp and rrfp/policies/registry.hpp, and the header of
/// each interface below that it implements or calls: this one only declares them.
///
/// The terms are those of torch.distributed.pipelining. A batch is split into microbatches along
/// its first dimension (like torch.tensor_split). The stages run them in the order that the
/// readiness of the inputs and the hint of the policy give. The result equals that of one process
/// that loops over the microbatches, to the last bit.
///
/// Several processes (started by torchrun or Slurm, see rrfp/membership/launch_environment.hpp)
/// each host some of the stages. Every process opens the same job and calls the same functions in
/// the same order. The process of the first stage needs the inputs, that of the last stage the
/// targets; elsewhere they may be undefined.
///
/// Steps count from 1 in results, hooks, traces, reports and errors; evaluations are counted
/// separately, also from 1. A step_id, which modules and weather get, is a key, not such a number
/// (rrfp/base/ids.hpp).
///
/// Errors are values: result<T>::message() is one line that names the stage. After a failed step
/// the pipeline has ended, and every further call returns the same error. A batch that is refused
/// before anything runs (too few rows, a wrong number of microbatches, no targets, a count of 0)
/// changes nothing; with several processes all must pass a valid batch. If a process passes its
/// batch more than run.hang_timeout_s after the others, training ends on all. An exception of a
/// user function becomes an error that names the function; so does a user policy that breaks the
/// rules of its interface (rrfp/core/policy.hpp).
///
/// If no task finishes for run.hang_timeout_s, for example because a module never returns, step()
/// and eval() return an error with the cause, and on_report gets the hang report. The thread of a
/// function that does not return cannot be ended: it keeps the memory of the pipeline. The
/// destructor waits run.hang_timeout_s for it (without limit if that is 0, and only briefly after a
/// hang), calls on_note and detaches it; objects that the function uses must outlive it.
///
/// Between two steps, requires_grad may change, in the same way on all replicas, but not for tied
/// parameters. A frozen parameter and its optimizer state do not change, unless a gradient still
/// waits for its update.
///
/// [train] applies: the learning rate goes from train.lr to train.lr_min along a cosine of
/// train.steps steps and then stays there, and gradients are clipped to train.clip_norm. A
/// parameter on which the loss of no microbatch of a step depends has no gradient, so the optimizer
/// skips it.
/// With device.kind = "cuda" the parameters and buffers of a stage move to its GPU before the first
/// step (a module that make_stage keeps sees them there), inputs and targets follow, and outputs
/// come back. forward and loss must create their tensors on the device of their input, use only the
/// current stream, and should not read values from the device (item(), cpu()), which blocks
/// the thread that launches.
///
/// open() restores libtorch's generator after the factories have run.
///
/// Thread-safety: one thread at a time may call a pipeline, except for interrupt(), report() and
/// metrics(). state_dict() and load_state_dict() during a step, and calls of any pipeline from
/// inside a forward or a loss, return an error. Threads of the pipeline call modules, losses and
/// hooks: one thread at a time calls a module, but modules of different stages run concurrently.
/// They must outlive the pipeline or be owned by it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <rrfp/actors/run_summary.hpp>
#include <rrfp/base/exit_code.hpp>
#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/membership/launch_environment.hpp>
#include <rrfp/stage.hpp>
#include <rrfp/torch/batch_source.hpp>

namespace rrfp {

class policy;
struct pipeline_shape;
struct rank_address;

namespace actors {
class trace_recorder;
class transport;
}  // namespace actors

namespace compute {
class optimizer;
class rank_compute;
class stage_module;
struct named_tensor;
struct parameter;
}  // namespace compute

namespace job {
struct job;
}  // namespace job

/// The model, the loss and the hooks of a pipeline. `make_stage` and `loss`, or `make_chunk`, or
/// `make_compute` must be set, and none of them with device.kind = "emulated", whose tasks take the
/// times of [cost] and [jitter] and compute nothing: losses are 0, and steps need no batch.
struct pipeline_options {
  /// Called once for every part of the model that this process hosts, in the order of the model.
  /// Before each call libtorch's generator is seeded from train.seed and the number of the part, so
  /// the initial weights do not depend on the process. May throw.
  std::function<result<stage>(const stage_place&)> make_stage;
  /// Returns the SUM (a float scalar) of the losses of a microbatch. The step divides it by the
  /// count of all microbatches, so that uneven microbatches have the correct weights.
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)> loss;
  /// The type in which forward() and `loss` compute what torch.autocast computes in it:
  /// at::kBFloat16, or at::kHalf with train.loss_scale. Parameters stay float. Empty: no autocast.
  std::optional<at::ScalarType> autocast;
  /// The number of loss terms of a microbatch with these targets. Empty: the number of rows. If it
  /// is set, gradients that waited (step_options::update) are divided by the terms of all their
  /// steps.
  std::function<std::int64_t(const at::Tensor& target)> count;

  /// Instead of make_stage, loss and count: a module that knows the step, the microbatch and the
  /// tensor-parallel group, or ties parameters.
  std::function<result<std::unique_ptr<compute::stage_module>>(const stage_place&)> make_chunk;

  /// Makes the optimizer of the parameters of a stage, which have names to group them by; empty:
  /// that of [train].
  std::function<std::unique_ptr<compute::optimizer>(const std::vector<compute::parameter>&)>
      make_optimizer;
  /// The learning rate of a step (from 1), which the optimizers get; empty: that of [train]. Called
  /// in the leading process, from a thread of the pipeline.
  std::function<double(std::uint64_t step)> lr;
  /// Makes the policy of a stage, instead of dispatch.policy (rrfp/core/policy.hpp), for the shape
  /// of the job, and again for a step with another number of microbatches.
  std::function<std::unique_ptr<policy>(const pipeline_shape&, stage_id)> make_policy;
  /// Bytes of a microbatch's slot on a stage, for dispatch.slot_bytes; empty: not counted.
  std::function<std::uint64_t(stage_id, microbatch_id)> slot_bytes;
  /// Your own weather, instead of the delays of [jitter].
  std::optional<actors::injected_delays> weather;
  /// Wraps or replaces the transport between ranks; gets the default one.
  std::function<std::unique_ptr<actors::transport>(std::unique_ptr<actors::transport>)>
      wrap_transport;
  /// Makes the compute of a rank, instead of libtorch on threads and the functions above.
  std::function<result<std::shared_ptr<compute::rank_compute>>(rank_address)> make_compute;

  /// The node number and rendezvous of this process; empty: from the environment.
  std::optional<actors::launch_place> place;
  /// Called by step() and eval() before they return.
  std::function<void(const actors::step_summary&)> on_step;
  /// Called after every save, from a thread of the pipeline, one call at a time with on_report.
  std::function<void(const actors::checkpoint_report&)> on_checkpoint;
  /// Called on every process with the hang report (several lines), before the error of a hang and
  /// after report(). Empty: stderr.
  std::function<void(const std::string&)> on_report;
  /// Called with one line for each note to the user: the checkpoint that the training resumes from,
  /// those that were skipped, a failed save, a hook that threw. Called on the thread that calls the
  /// pipeline. Empty: stderr.
  std::function<void(const std::string&)> on_note;
  /// Records the tasks of the run; may be null. Must outlive the pipeline.
  actors::trace_recorder* trace = nullptr;
};

/// The rows of a step: [rows, ...] each. At least one row for every microbatch.
struct batch {
  at::Tensor inputs;
  at::Tensor targets;
};

struct step_options {
  /// The outputs of the last stage go into step_result::outputs, in the process that hosts it
  /// (rank 0 of its ranks). They stay in memory until the result is destroyed. A module of
  /// make_chunk must pass its output to forward_input::keep_output; make_compute cannot provide
  /// any.
  bool return_outputs = false;
  /// False: the gradients of this step() wait, and the next ones are added to them, until a step()
  /// that updates the parameters by their sum. Divide the loss where you want their mean, unless
  /// pipeline_options::count is set. The step counts like any other, but has no learning rate and
  /// no gradient norm. What waits is lost if the training ends.
  bool update = true;
  /// By replica: the number of microbatches of this step, which may be 0 on some. Empty: a batch is
  /// cut into as many as the job says, and a vector of microbatches is shared out evenly, the first
  /// replicas getting one more. All processes must pass the same value.
  std::vector<std::uint32_t> microbatches = {};
};

struct step_result {
  /// Number of this step in the training; for eval(), of this evaluation of the pipeline.
  std::uint64_t step = 0;
  double loss = 0;  ///< mean over all counted loss terms
  /// Mean of every microbatch, in order, over all replicas.
  std::vector<double> losses;
  double gradient_norm = 0;  ///< before clipping; only of step()
  /// The gradient was infinite or NaN, so the parameters did not change (train.loss_scale).
  bool is_skipped = false;
  double lr = 0;
  std::int64_t count = 0;  ///< loss terms of the step
  double ms = 0;           ///< duration
  double bubble = 0;       ///< share of the stages' time without a task
  /// By stage: the share of its time in B, BW and W that went to W.
  std::vector<double> weight_shares;
  /// One per microbatch, detached, if requested and hosted here.
  std::vector<at::Tensor> outputs;
  /// "on_step threw: no such file"; includes on_checkpoint and on_report since the last step. Empty
  /// if none threw.
  std::string hook_failure;
};

class pipeline {
 public:
  /// Joins the other processes, makes the stages that this process hosts and resumes from the last
  /// checkpoint as [checkpoint] says. `j` needs no model and no data: load it with job_use::embed,
  /// or fill in its fields. An error is for the user to correct: it names a key of the job or a
  /// stage.
  static result<std::unique_ptr<pipeline>> open(job::job j, pipeline_options options);
  pipeline(const pipeline&) = delete;
  pipeline& operator=(const pipeline&) = delete;
  /// Ends the run without a save, and waits for user functions that have not returned, as described
  /// above.
  ~pipeline();

  /// One step of the training: forward, backward and update. The batch is split into
  /// pipeline.microbatches * pipeline.replicas microbatches.
  result<step_result> step(const batch& rows, step_options how = {});
  /// The same with your own microbatches, of any sizes; `tokens` is the count of each.
  result<step_result> step(std::vector<compute::microbatch> microbatches, step_options how = {});
  /// Forward only: weights do not change, and modules are set to train(false). Not counted as a
  /// step.
  result<step_result> eval(const batch& rows, step_options how = {});
  result<step_result> eval(std::vector<compute::microbatch> microbatches, step_options how = {});

  /// Completed steps of the training, including those before it resumed: the index of the next
  /// batch, from 0.
  std::uint64_t steps() const;
  /// Whether this process reports for all: node 0, or after its loss the one that leads.
  bool leads() const;

  /// Copies of the parameters, the buffers and the optimizer's state of the parts in this process,
  /// in host memory, under the names of checkpoints. If this process hosts several replicas, the
  /// state of the first one.
  result<std::vector<compute::named_tensor>> state_dict();
  /// Sets the state of the parts in this process; other tensors in `state` are ignored. steps(), to
  /// which random numbers and the learning rate belong, does not change. Error: a tensor is missing
  /// or has another shape; nothing is set then.
  status load_state_dict(std::vector<compute::named_tensor> state);

  /// Goes on after the loss of a process, when a call has returned error_kind::node_lost and
  /// recovery.max_restarts allows it: joins the others and the replacement of the lost one again,
  /// makes the parts of this process anew, and restores the newest step of which the state of all
  /// parts is held, or a checkpoint. The program goes on with the batch after steps(); the result
  /// is that of a run without losses. Only a step with an update can be restored. Error: no
  /// replacement joined within recovery.hold_s, the state is lost, or this process itself was
  /// declared lost.
  status recover();
  /// Saves now, also a step that is saved already, since the program may have changed its state.
  /// Returns once the state is copied; on_checkpoint gets the outcome. Error: no checkpoint.dir, or
  /// gradients wait for their update. (A save that checkpoint.every makes due waits for that
  /// update.)
  status save();
  /// Ends the training on all processes: saves unsaved state if there is a checkpoint.dir, and
  /// leaves the job. The summary is complete on node 0. After an interrupt() that completed and
  /// saved the running step, it returns the summary, too, but without weights_xxh64. Error: the
  /// training failed, or its last state could not be saved.
  result<actors::run_summary> finish();
  /// Ends the training; from any thread, but not from a signal handler. With a checkpoint.dir the
  /// first call completes and saves the running step.
  void interrupt();
  /// Calls on_report on every process with a hang report, which includes `why`; the training
  /// continues. From any thread, but not from a signal handler.
  void report(std::string why);
  /// The metrics of this process in the text format of Prometheus, those that rrfp-node serves;
  /// also after the end. From any thread.
  std::string metrics() const;

 private:
  class impl;
  explicit pipeline(std::shared_ptr<impl> state);
  std::shared_ptr<impl> impl_;  ///< shared with threads that cannot be ended
};

}  // namespace rrfp

/// A pipeline in a training loop of one's own, with a model of one's own.
///
///   rrfp::pipeline_options options;
///   options.make_stage = [](const rrfp::stage_place& at) {       // one part of the model
///     return rrfp::stage_of(Block(at.index, at.count));     // any torch::nn module
///   };
///   options.loss = [](const torch::Tensor& output, const torch::Tensor& target) {
///     return torch::mse_loss(output, target, torch::Reduction::Sum);
///   };
///   auto job = rrfp::job::load_job("job.toml", {}, rrfp::job::job_use::embed).value();
///   auto pipeline = rrfp::pipeline::open(job, options).value();
///   while (...) {
///     const auto r = pipeline->step({inputs, targets}).value();
///     std::printf("%f\n", r.loss);
///   }
///   pipeline->finish().value();
///
/// The words are those of torch.distributed.pipelining: a batch is cut into microbatches along its
/// first dimension (as torch.tensor_split does), stages run on it in whatever order the readiness
/// of their inputs and the hint of the job's policy make best, and the result is that of one
/// process that loops over the microbatches, to the last bit.
///
/// Started as several processes (torchrun's variables or Slurm's, see
/// rrfp/actors/launch_environment.hpp), each hosts some of the stages; every process opens the same
/// job and calls the same functions in the same order. Inputs matter in the process of the first
/// stage, targets in that of the last one; elsewhere they may be undefined.
///
/// Steps count from 1, in results, hooks, traces, reports and errors; evaluations count from 1 on
/// their own. A step_id, which modules and weather get, is a key (rrfp/schedule/step_name.hpp).
///
/// Errors are values: result<T>::message() is one line that names the stage. After a step that
/// failed the pipeline is over, and each further call gives the same error; a batch that is refused
/// before anything runs (too few rows, another number of microbatches, no targets, nothing that
/// counts) leaves it as it was, so of several processes all must be given batches that fit. A
/// process that is given its batch later than run.hang_timeout_s after the others ends the training
/// for all; one that waits for node 0 to begin a step waits for as long as node 0 lives. What
/// functions of the program's own throw becomes an error too, which names the function; so does an
/// own policy that breaks its rules (rrfp/schedule/check_policy.hpp).
///
/// If no task finishes for run.hang_timeout_s, a module that never returns among the causes, step()
/// and its like give an error that names who waits for what, and on_report gets the whole. The
/// thread of a function that does not return cannot be ended: it stays, and with it all that the
/// pipeline holds. The destructor waits run.hang_timeout_s for it (not again after a hang; for ever
/// if that is 0), says so by on_note and leaves it; what the function refers to must outlive it.
///
/// [train] is followed to the letter: the learning rate goes from train.lr to train.lr_min along a
/// cosine of train.steps steps and stays there, and gradients are clipped to train.clip_norm.
/// A parameter that no microbatch of a step has used has a gradient of zero, as after torch's
/// zero_grad(set_to_none=False): weight decay and momentum still move it.
/// Modules of a program's own run on the CPU (device.kind = "cpu").
///
/// open() leaves libtorch's generator as it was, whatever the factories draw.
///
/// Thread-safety: one thread at a time calls a pipeline, but for interrupt() and report(). Modules,
/// losses and hooks are called from threads of the pipeline, a module from one at a time, of
/// different stages at once; they must outlive the pipeline or be owned by it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <rrfp/actors/checkpointing.hpp>
#include <rrfp/actors/launch_environment.hpp>
#include <rrfp/actors/session.hpp>
#include <rrfp/actors/trace.hpp>
#include <rrfp/compute/batch_source.hpp>
#include <rrfp/compute/optimizer.hpp>
#include <rrfp/compute/rank_group.hpp>
#include <rrfp/compute/stage_module.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/schedule/policy.hpp>
#include <rrfp/schedule/result.hpp>
#include <rrfp/stage.hpp>

namespace rrfp {

/// What a training gives its pipeline. `make_stage` and `loss`, or `make_chunk`, or
/// `make_compute` must be set.
struct pipeline_options {
  /// Called once for every part of the model that this process hosts, in the order of the model.
  /// Before each call libtorch's generator is seeded from train.seed and the part's number, so the
  /// same weights begin wherever the part is hosted. May throw.
  std::function<result<stage>(const stage_place&)> make_stage;
  /// The SUM (a float scalar) of the losses of what counts in a microbatch: so that uneven
  /// microbatches weigh as they should, the step divides by the count of all.
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)> loss;
  /// How much counts in a microbatch with these targets. Empty: their rows.
  std::function<std::int64_t(const at::Tensor& target)> count;

  /// Instead of make_stage, loss and count: a module that knows the step, the microbatch and the
  /// tensor-parallel group, ties parameters, or makes its weight gradients in W.
  std::function<result<std::unique_ptr<compute::stage_module>>(const stage_place&)> make_chunk;

  /// Of the parameters of a stage; empty: as [train] says. The learning rate is that of [train].
  std::function<std::unique_ptr<compute::optimizer>(std::vector<at::Tensor>)> make_optimizer;
  /// Of a stage, instead of dispatch.policy (rrfp/schedule/policy.hpp).
  std::function<std::unique_ptr<policy>(stage_id)> make_policy;
  /// Bytes of a microbatch's slot on a stage, for dispatch.slot_bytes; empty: not counted.
  std::function<std::uint64_t(stage_id, microbatch_id)> slot_bytes;
  /// Instead of the delays of [jitter]: weather of one's own.
  std::optional<actors::injected_delays> weather;
  /// Around or instead of the way by which tensors go between ranks; gets the one that would be.
  std::function<std::unique_ptr<actors::transport>(std::unique_ptr<actors::transport>)>
      wrap_transport;
  /// Instead of libtorch on threads, and of the functions above: what computes for a rank.
  std::function<result<std::shared_ptr<compute::rank_compute>>(actors::rank_address)> make_compute;

  /// Which process this is; nothing: as the environment says.
  std::optional<actors::launch_place> place;
  /// Called by step() and eval() before they return.
  std::function<void(const actors::step_summary&)> on_step;
  /// Called after every save, from a thread of the pipeline, one call at a time with on_report.
  std::function<void(const actors::checkpoint_report&)> on_checkpoint;
  /// Called with the text of who waits for what, before the error of a training that hangs and when
  /// report() has asked for it: several lines, on every process. Empty: stderr.
  std::function<void(const std::string&)> on_report;
  /// What the user of the training should be told, a line each: where it goes on, what was passed
  /// over, which hook threw. Called in the thread that calls the pipeline. Empty: stderr.
  std::function<void(const std::string&)> on_note;
  /// Filled as the training goes; may be null. Outlives the pipeline.
  actors::trace_recorder* trace = nullptr;
};

/// The rows of a step: [rows, ...] each. At least one row for every microbatch.
struct batch {
  at::Tensor inputs;
  at::Tensor targets;
};

struct step_options {
  /// The outputs of the last stage go into step_result::outputs, in the process that hosts it
  /// (rank 0 of its ranks). They stay in memory until the result is gone. A module of make_chunk
  /// gives its own to forward_input::keep_output; make_compute has none to give.
  bool return_outputs = false;
};

struct step_result {
  /// Complete steps of the training, this one included; of eval(): evaluations of this pipeline.
  std::uint64_t step = 0;
  double loss = 0;  ///< mean over what counts
  /// Mean of every microbatch, in order; of all replicas.
  std::vector<double> losses;
  double gradient_norm = 0;  ///< before clipping; of a training
  double lr = 0;
  std::int64_t count = 0;
  double ms = 0;
  double bubble = 0;  ///< share of the stages' time without a task
  /// One a microbatch, if asked for and hosted here; detached.
  std::vector<at::Tensor> outputs;
  /// "on_step threw: no such file", of on_checkpoint and on_report since the last step, too. Empty:
  /// none threw.
  std::string hook_failure;
};

class pipeline {
 public:
  /// Joins the other processes, makes the stages that are hosted here and takes up the last
  /// checkpoint as [checkpoint] says. `j` needs no model and no data: load it with job_use::embed,
  /// or fill in its fields. Error: the user's to mend; it names a key of the job or a stage.
  static result<std::unique_ptr<pipeline>> open(job::job j, pipeline_options options);
  pipeline(const pipeline&) = delete;
  pipeline& operator=(const pipeline&) = delete;
  /// Ends what runs, without a save, and waits for functions of the program's that have not
  /// returned, as said above.
  ~pipeline();

  /// One step of the training: forward, backward and update. pipeline.microbatches * replicas
  /// microbatches are cut from the batch.
  result<step_result> step(const batch& rows, step_options how = {});
  /// The same with microbatches of one's own, of any sizes; `tokens` is what counts in each.
  result<step_result> step(std::vector<compute::microbatch> microbatches, step_options how = {});
  /// Forward alone: nothing is learnt, modules are told by train(false). Does not count as a step.
  result<step_result> eval(const batch& rows, step_options how = {});
  result<step_result> eval(std::vector<compute::microbatch> microbatches, step_options how = {});

  /// Complete steps of the training, those before it was taken up again included: the number of the
  /// batch that comes next.
  std::uint64_t steps() const;
  /// Whether this process is the one to speak for all.
  bool leads() const;

  /// Saves now, unless that state is saved already. Returns at once: the pipeline waits for a copy
  /// before the next step, and on_checkpoint tells how it ended. Error: there is no checkpoint.dir.
  status save();
  /// A good end, on all processes: saves what is not saved, if there is a checkpoint.dir, and says
  /// goodbye. The summary is whole in the process that leads. After an interrupt() that has let the
  /// running step end and saved it, the summary as well, but for weights_xxh64.
  result<actors::run_summary> finish();
  /// Ends the training, from any thread, not from a signal handler. The first time after the
  /// running step and with a save, if there is a checkpoint.dir.
  void interrupt();
  /// Has on_report of every process told who waits for what; the training goes on. `why` is told
  /// along. From any thread, not from a signal handler.
  void report(std::string why);

 private:
  class impl;
  explicit pipeline(std::shared_ptr<impl> state);
  std::shared_ptr<impl> impl_;  ///< shared with what runs and cannot be ended
};

}  // namespace rrfp

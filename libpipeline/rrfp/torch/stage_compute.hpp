/// Computes the tasks of one stage on one rank; the rank's compute thread calls it launch by
/// launch.
///
/// F keeps the autograd graph of a microbatch. B runs the graph from the output to the input and
/// keeps what the weight gradients need: the inputs of linear() and embedding() with the gradients
/// of their outputs, and of all other operators the parts of the graph beside that path. On a first
/// stage without linear() and embedding() that is the whole graph. W computes the weight gradients.
/// Only folds add gradients, in the order of the microbatch numbers (launch.folds), so the result
/// of a step does not depend on the order of its tasks: it equals an ordinary loop over the
/// microbatches bit for bit.
///
/// The loss of a step is the mean over all its tokens, so each microbatch is weighted by its
/// tokens.
///
/// With several tensor-parallel ranks, each rank has its own object with its part of the weights,
/// and all run the same launches in the same order. The operators communicate through the
/// rank_group (parallel_operators.hpp).
///
/// Sequence of calls in a step:
///   begin_step, run for every launch of the stage core, tied_gradient/join_tied if a tie spans two
///   stages, squared_norms -> (job: clip_gradients over all ranks) -> apply.
/// abort_step ends an abandoned step.
///
/// requires_grad of parameters is read at the start of each training step: one that is frozen then
/// gets no gradient, and its state in the optimizer stays. That of tied parameters must not change.
///
/// A parameter on which the loss of no microbatch depends has no gradient either, so the optimizer
/// skips it. Between stages such a gradient travels as a tensor of the shape {0}.
///
/// On a device with streams, run() returns once the work is enqueued in the current stream.
/// Functions that read numbers (losses, norms, hashes) wait for the stream.
///
/// Not thread-safe: one thread, which has called prepare_compute_thread(), uses an object; other
/// threads may only read meter(). Launches that break the protocol (a B without its F, folds out of
/// order) abort the process.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <rrfp/base/result.hpp>
#include <rrfp/compute/compute_error.hpp>
#include <rrfp/compute/parameters.hpp>
#include <rrfp/compute/rank_compute.hpp>
#include <rrfp/compute/rank_group.hpp>
#include <rrfp/core/event.hpp>
#include <rrfp/core/placement.hpp>
#include <rrfp/job/options.hpp>
#include <rrfp/torch/batch_source.hpp>
#include <rrfp/torch/memory_meter.hpp>
#include <rrfp/torch/optimizer.hpp>
#include <rrfp/torch/stage_module.hpp>
#include <rrfp/torch/tensors.hpp>

namespace rrfp::compute {

/// Makes libtorch's kernels run on the calling thread alone. Ranks on one machine would compete for
/// its cores, and the bits of a sum may depend on the number of threads.
void prepare_compute_thread();

struct stage_compute_config {
  pipeline_shape shape;
  stage_id stage;
  job::train_options train;
  /// The ranks of this stage; the same group as in make_model_chunk(). Null: one rank.
  std::shared_ptr<rank_group> group = nullptr;
  /// The batch source and the dropout keys number the microbatches over all replicas.
  replica_id replica{};
  /// Keeps only the input of a microbatch between F and B; B runs the forward again (Chen et al.,
  /// 2016). The bits are the same.
  bool recompute = false;
  /// Empty: train.optimizer selects it.
  optimizer_factory make_optimizer = {};
  /// The device of the model, its gradients, the optimizer state, and the inputs and outputs of
  /// run().
  at::Device device{at::kCPU};
};

class stage_compute final : public rank_compute {
 public:
  /// `chunks` is indexed by chunk. Errors: an invalid shape, a number of chunks other than
  /// shape.chunks, a missing batch source, two parameters with one name, no optimizer.
  static result<std::unique_ptr<stage_compute>> make(
      const stage_compute_config& config, std::vector<std::unique_ptr<stage_module>> chunks,
      std::shared_ptr<const batch_source> data);
  ~stage_compute() override;

  /// Call before the first step, after apply() or after abort_step(). Throws compute_error if the
  /// batch source throws.
  void begin_step(step_id step, step_purpose purpose = step_purpose::training,
                  const microbatch_shares& microbatches = {}) override;
  /// prepare_compute_thread()
  void prepare_thread() override;

  /// Runs one launch, then folds launch.folds. `input` is the activation for F (undefined on the
  /// first virtual stage, which loads its data) or the output gradient for B and BW (undefined on
  /// the last one). Its memory is shared and must not change while the microbatch is in flight. It
  /// should be aligned to 64 bytes, otherwise it is copied: the bits of a matrix product may depend
  /// on alignment. Returns the tensor for the neighbour: the activation (F, not on the last virtual
  /// stage), the input gradient (B and BW, not on the first one), undefined otherwise; contiguous.
  ///
  /// A BW whose folds begin with its own microbatch computes weight gradients inside the backward,
  /// layer by layer; any other BW leaves them to the fold, as B does. Throws compute_error.
  at::Tensor run(const launch& l, at::Tensor input);
  tensor_buffer run(const launch& l, tensor_buffer input) override;
  void fail_input(const std::string& input, const std::string& why) const override;

  bool forwards_in_order() const override;

  /// Losses of the microbatches of this step whose F on the last virtual stage is done, in the
  /// order of their numbers. Empty on other stages. Valid until the next begin_step. Throws
  /// compute_error if a loss that was still on the device is not finite.
  std::vector<microbatch_loss> losses() const override;

  std::optional<tensor_buffer> take_opened_sum() override;
  void join_opened_sum(const tensor_buffer& sum) override;
  /// Copies of tied parameters included. Call after every microbatch is folded and before the tie
  /// is joined, on all replicas. Throws group_error.
  void sum_gradients(rank_group& replicas) override;

  /// The gradient of this stage's side of the tied parameter if the other side is on another stage;
  /// the caller sends it to the same rank there. Nullopt if no tie spans two stages; of the shape
  /// {0} if the parameter has no gradient. Call after every microbatch is folded.
  std::optional<tensor_buffer> tied_gradient() const override;
  /// Which side that is.
  tie tied_side() const override;
  /// Adds `partner`, the tied_gradient() of the other side.
  void join_tied(const tensor_buffer& partner) override;

  /// One entry for each parameter that this rank reports, without frozen ones and copies, in model
  /// order, computed in double. Call after every microbatch is folded and the tie is joined.
  std::vector<parameter_norm> squared_norms() override;

  /// Ends the step: scales the gradients (unless `scale` is 1), takes an optimizer step with
  /// learning rate `lr` and frees the gradients. Throws compute_error.
  void apply(double scale, double lr) override;

  void end_without_update() override;

  /// Abandons the step: frees saved activations and gradients; the weights stay unchanged.
  void abort_step();

  /// One entry for each parameter that this rank reports, without copies, in model order.
  std::vector<parameter_hash> hashes() const override;
  /// The parameters of this rank, replicated ones included, without copies, in model order. They
  /// share memory with the model.
  std::vector<named_tensor> weights(tied_copies copies = tied_copies::left_out) const;
  /// weights() and the optimizer state (optimizer_prefix, "NAME.exp_avg", ...): everything that
  /// restore() needs to resume with the same bits. The tensors share memory with the model: copy or
  /// write them before the next step. Call between steps.
  std::vector<named_tensor> snapshot(tied_copies copies = tied_copies::left_out) const;
  std::vector<named_buffer> snapshot(tied_copies copies, snapshot_memory memory) const override;
  std::vector<std::string> names() const override;
  /// Copies what this rank needs, copies of tied parameters included, from `state`: the snapshots
  /// of all ranks of all stages, possibly with other numbers of stages and ranks. Other entries are
  /// ignored. Error: a tensor or a part of it is missing, or has another shape or type; nothing is
  /// changed then.
  status restore(std::span<const named_tensor> state);
  status restore(std::span<const named_buffer> state) override;
  status fits(std::span<const named_buffer> state) const override;

  /// Memory of this stage's launches: activations and temporaries, without weights, their gradients
  /// and the optimizer state. The peak is that of the current step.
  const memory_meter& meter() const;
  std::int64_t held_bytes() const override { return meter().current(); }
  std::int64_t peak_bytes() const override { return meter().peak(); }

 private:
  class impl;
  explicit stage_compute(std::unique_ptr<impl> state);
  std::unique_ptr<impl> impl_;
};

}  // namespace rrfp::compute

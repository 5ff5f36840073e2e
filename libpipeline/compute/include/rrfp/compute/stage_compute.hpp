/// The tensors of one stage: what a rank's compute thread drives, launch by launch.
///
/// The intuition: F keeps the graph of a microbatch, B runs it backwards and keeps what the weight
/// gradient needs, W turns that into gradients. No gradient reaches its sum but by folding, and
/// folding follows the numbers of the microbatches (launch.folds), so the result of a step does not
/// depend on the order in which its tasks ran: same bits as an ordinary loop over the microbatches.
///
/// The loss of a step is the mean over all its tokens, so uneven microbatches weigh as they should.
///
/// A stage may have several tensor-parallel ranks: each has an object of its own, with its part of
/// the weights, and runs the same launches in the same order. Where their results meet is the
/// business of the operators and the rank_group (parallel_operators.hpp).
///
/// The life of a step:
///   begin_step, run for every launch of the stage core, tied_gradient/join_tied if there is a tie
///   across stages, squared_norms -> (job: clip_gradients over all ranks) -> apply.
/// An abandoned step ends with abort_step.
///
/// On a device with streams run() returns as soon as the work is in the current stream: results,
/// losses too, are there when that has come so far. What reads numbers (losses, norms, hashes)
/// waits for it.
///
/// Not thread-safe: one thread, which has called prepare_compute_thread(), drives an object; only
/// meter() may be read from others. Launches of a step that break the protocol (a B without its F,
/// folds out of turn) abort the process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <rrfp/compute/batch_source.hpp>
#include <rrfp/compute/compute_error.hpp>
#include <rrfp/compute/memory_meter.hpp>
#include <rrfp/compute/optimizer.hpp>
#include <rrfp/compute/parameter_report.hpp>
#include <rrfp/compute/rank_compute.hpp>
#include <rrfp/compute/rank_group.hpp>
#include <rrfp/compute/stage_module.hpp>
#include <rrfp/job/options.hpp>
#include <rrfp/schedule/event.hpp>
#include <rrfp/schedule/placement.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp::compute {

/// Makes libtorch's kernels run on the calling thread alone: ranks that share a machine would fight
/// for its cores, and the bits of a result may depend on how many threads a sum is split over.
void prepare_compute_thread();

/// MKL finds out in the first call of any of its vector functions (sqrt, exp, ...) which kernels
/// fit the processor, and before oneMKL 2025 tells threads that ask meanwhile a wrong answer: they
/// run kernels of less accuracy, that once. Makes that first call. stage_compute::make() does it; a
/// program whose own threads compute before calls it itself.
void settle_vector_kernels();

/// In a snapshot, what the optimizer keeps for a parameter has this before the parameter's name.
inline constexpr std::string_view optimizer_prefix = "optimizer.";

struct stage_compute_config {
  pipeline_shape shape;
  stage_id stage;
  job::train_options train;
  /// The ranks of this stage, the one that the chunks were made for; null: one rank.
  std::shared_ptr<rank_group> group = nullptr;
  /// The number of microbatch 0 among those of all replicas: keys dropout. The batch source numbers
  /// from 0 whatever this is.
  std::uint32_t first_microbatch = 0;
  /// Between F and B a microbatch keeps its input alone; B runs the forward again (Chen et al.,
  /// 2016). The bits are the same.
  bool recompute = false;
  /// Of the parameters that are trained; empty: as train.optimizer says.
  std::function<std::unique_ptr<optimizer>(std::vector<at::Tensor>)> make_optimizer = {};
  /// Where the model, its gradients and the optimizer's state live, and what comes and goes.
  at::Device device{at::kCPU};
};

class stage_compute final : public rank_compute {
 public:
  /// `chunks` is indexed by chunk. Errors: a shape that is impossible, a number of chunks that is
  /// not that of the shape, a missing batch source, two parameters of one name, no optimizer.
  static result<std::unique_ptr<stage_compute>> make(
      const stage_compute_config& config, std::vector<std::unique_ptr<stage_module>> chunks,
      std::shared_ptr<const batch_source> data);
  ~stage_compute() override;

  /// Legal before the first step, after apply() and after abort_step(). Throws compute_error when
  /// the batch source does.
  void begin_step(step_id step, step_purpose purpose = step_purpose::training) override;

  /// Runs one launch, then folds launch.folds. `input` is the activation for F (undefined on the
  /// first virtual stage, which loads its data) or the output gradient for B and BW (undefined on
  /// the last one); its memory is shared, must not change while the microbatch is in flight, and
  /// should be aligned to 64 bytes (it is copied otherwise: the bits of a matrix product may depend
  /// on alignment). Returns what goes on to a neighbour: the activation (F, not on the last virtual
  /// stage), the input gradient (B and BW, not on the first one), undefined otherwise; contiguous.
  ///
  /// A BW whose folds begin with its own microbatch computes weight gradients inside the backward,
  /// layer by layer; any other leaves them in the stash like a B. Throws compute_error.
  at::Tensor run(const launch& l, at::Tensor input) override;
  void refuse(const std::string& what, const std::string& why) const override;

  /// The microbatches of this step whose F on the last virtual stage is done, by number. Empty on
  /// other stages. Valid until the next begin_step. Throws compute_error if one is not finite and
  /// run() could not know.
  std::vector<microbatch_loss> losses() const override;

  /// The gradients of all parameters of this rank, copies included, in model order: to be summed in
  /// place over the replicas, before a tie is joined. Legal once every microbatch is folded.
  std::vector<at::Tensor> gradients() const override;

  /// The gradient of the tied parameter's side that this stage holds, when the other side lives on
  /// another stage: to be sent there, to the same rank, and joined. Nothing when there is no tie
  /// across stages. Legal once every microbatch is folded.
  std::optional<at::Tensor> tied_gradient() const override;
  /// Which side that is.
  tie tied_side() const override;
  /// `partner` is what the other side's tied_gradient() gave.
  void join_tied(const at::Tensor& partner) override;

  /// One entry a parameter, without frozen ones, copies and what rank 0 reports for all, in model
  /// order. Legal once every microbatch is folded and the tie is joined. The computation is in
  /// double.
  std::vector<parameter_norm> squared_norms() override;

  /// Scales the gradients (unless `scale` is 1), takes an optimizer step with the learning rate
  /// `lr` and frees the gradients: the step is over. Throws compute_error.
  void apply(double scale, double lr) override;

  /// An evaluation is over; nothing has changed. Legal once every microbatch is folded.
  void end_evaluation() override;

  /// Forgets the step: saved activations and gradients are freed, weights stay as they were.
  void abort_step();

  /// One entry a parameter, without copies and what rank 0 reports for all, in model order.
  std::vector<parameter_hash> hashes() const override;
  /// The parameters of this rank, without copies, in model order; every rank gives those that all
  /// hold, too. They share memory with the model.
  std::vector<named_tensor> weights() const;
  /// weights() and the optimizer's state (optimizer_prefix, "NAME.exp_avg", ...): with restore()
  /// everything that a run needs to go on with the same bits. They share memory with the model:
  /// copy or write them before the next step. Legal between steps.
  std::vector<named_tensor> snapshot() const override;
  /// Copies what this rank needs (copies of tied parameters included) out of `state`, the snapshots
  /// of all ranks of all stages of a model, maybe cut differently into stages and ranks; other
  /// entries are ignored. Error: a tensor or a part of one is missing, or has another shape or
  /// type; the state is then partly restored.
  status restore(std::span<const named_tensor> state) override;

  /// Activations and all other memory of this stage's launches; not weights, their gradients and
  /// the optimizer's state. The peak is that of the current step.
  const memory_meter& meter() const;
  std::int64_t held_bytes() const override { return meter().current(); }
  std::int64_t peak_bytes() const override { return meter().peak(); }

 private:
  class impl;
  explicit stage_compute(std::unique_ptr<impl> state);
  std::unique_ptr<impl> impl_;
};

}  // namespace rrfp::compute

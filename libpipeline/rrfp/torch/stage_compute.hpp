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

#include <ATen/ATen.h>

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

#include "loss_scaler.hpp"
#include "stage_state.hpp"

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

  /// Call before the first step, or after apply() or end_without_update().
  void begin_step(step_id step, step_purpose purpose = step_purpose::training,
                  const microbatch_shares& microbatches = {}) override;
  void prepare_thread() override { prepare_compute_thread(); }

  /// Runs one launch, then folds launch.folds. `input` is the activation for F (undefined on the
  /// first virtual stage, which loads its data) or the output gradient for B and BW (undefined on
  /// the last one). Its memory is shared and must not change while the microbatch is in flight. It
  /// should be aligned to 64 bytes, otherwise it is copied: the bits of a matrix product may depend
  /// on alignment. Returns the tensor for the neighbour: the activation (F, not on the last virtual
  /// stage), the input gradient (B and BW, not on the first one), undefined otherwise; contiguous.
  ///
  /// A BW whose folds begin with its own microbatch computes weight gradients inside the backward,
  /// layer by layer; any other BW leaves them to the fold, as B does. Throws compute_error.
  tensor_buffer run(const launch& l, tensor_buffer input) override;
  void fail_input(const std::string& input, const std::string& why) const override;

  bool forwards_in_order() const override;

  /// Of the microbatches whose F is done. Throws compute_error if a loss that was still on the
  /// device is not finite.
  std::vector<microbatch_loss> losses() const override;

  std::optional<tensor_buffer> take_opened_sum() override;
  void join_opened_sum(const tensor_buffer& sum) override;
  /// Copies of tied parameters included. Throws group_error.
  void sum_gradients(rank_group& replicas) override;

  std::optional<tensor_buffer> tied_gradient() const override;
  tie tied_side() const override;
  void join_tied(const tensor_buffer& partner) override;

  /// Of the parameters that have a gradient, without copies, in model order; computed in double.
  std::vector<parameter_norm> squared_norms() override;

  /// Also frees the gradients. Throws compute_error.
  void apply(double scale, double lr) override;

  void end_without_update() override;

  /// Of the parameters that this rank reports, without copies, in model order.
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
  status restore(std::span<const named_buffer> state) override;
  status fits(std::span<const named_buffer> state) const override;

  /// Memory of this stage's launches: activations and temporaries, without weights, their gradients
  /// and the optimizer state. The peak is that of the current step.
  const memory_meter& meter() const { return meter_; }
  std::int64_t held_bytes() const override { return meter().current(); }
  std::int64_t peak_bytes() const override { return meter().peak(); }

 private:
  stage_compute(const stage_compute_config& config,
                std::vector<std::unique_ptr<stage_module>> chunks,
                std::shared_ptr<const batch_source> data);

  void join_local_tie();
  /// A gradient that only another member of `group` has becomes zeros here, so that all members
  /// update the same parameters.
  void agree_on_gradients(rank_group& group, const std::vector<at::Tensor>& parameters);
  /// What restore() would set. Error: a tensor is missing or does not fit.
  struct matching;
  result<matching> match(std::span<const named_buffer> state) const;
  /// Divides the gradients by the factor of the loss.
  void unscale();
  void require_folded() const;
  bool has_last_chunk() const;
  bool is_training() const { return purpose_ != step_purpose::evaluation; }
  /// The microbatch, numbered over all replicas.
  microbatch_id in_all(microbatch_id mb) const { return shares_.in_all(config_.replica, mb); }
  /// A microbatch of a part is folded.
  void count_in_part(chunk_state& chunk);
  /// Makes the sum that another rank goes on with, once this part of it is complete.
  void leave_opened_sum();
  void add_opened_sum(const at::Tensor& sum);
  void sum_shared_gradients(rank_group& replicas);

  std::uint32_t rank() const { return config_.group ? config_.group->rank() : 0; }
  /// Whether this rank reports a parameter at the end of a step.
  bool reports(const parameter& p) const {
    return p.tied != tie::copy && (p.part.has_value() || rank() == 0);
  }

  /// Reads which parameters are frozen now. Fails if a tied one has changed: the stages exchange
  /// its gradients from the start, or never.
  void find_trained();
  at::Tensor forward(const task& t, at::Tensor input, forward_pass pass);
  /// Runs the operations of F again, on the same numbers and so to the same bits.
  void recompute(chunk_state& chunk, in_flight& mb, const task& t) const;
  /// Stores the root of the backward graph of `out`. Fails if the graph has a leaf that is not
  /// trained.
  void keep_root(const chunk_state& chunk, in_flight& mb, const task& t,
                 const at::Tensor& out) const;
  /// Runs a B, W or BW, and times it while the trial of the chunk goes on.
  at::Tensor run_backward(const launch& l, at::Tensor input);
  at::Tensor backward(const task& t, at::Tensor gradient, bool fold_inside);
  /// Runs the backward graph, or what W does not need to run if W is apart. Returns the gradient of
  /// the input, undefined if there is none.
  at::Tensor run_graph(chunk_state& chunk, in_flight& mb, at::Tensor gradient,
                       bool fold_inside) const;
  void fold(chunk_state& chunk, fold_range range, const in_flight* folded_inside);
  void record_loss(const task& t, const at::Tensor& sum, std::int64_t tokens);
  void store_loss(const task& t, double sum, std::int64_t tokens) const;
  /// Reads the losses that the device was still computing.
  void read_late_losses() const;
  /// A copy of `out` if it shares memory with the received tensor `given` on a device. Received
  /// memory is released when the task ends, and the device allocator cannot delay that for other
  /// readers.
  at::Tensor owned(const at::Tensor& out, const void* given) const;
  /// Copies to the device of this stage unless it is the CPU.
  at::Tensor to_device(const at::Tensor& t) const;
  microbatch to_device(microbatch mb) const;
  /// Number of microbatches that hold memory on this stage.
  std::size_t held_microbatches() const;
  [[noreturn]] void fail_for_memory(const std::string& where, const std::string& why) const;
  class lazy_microbatch;
  using load_function = microbatch (batch_source::*)(step_id, microbatch_id) const;
  microbatch load(const task& t, load_function function) const;
  microbatch_layout load_layout(const task& t) const;
  /// `input`: undefined on the first virtual stage.
  at::Tensor call_module(chunk_state& chunk, const task& t, const at::Tensor& input,
                         weight_stash& stash, microbatch_view& batch) const;
  [[noreturn]] void fail(compute_fault fault, const std::string& where,
                         const std::string& why) const;
  /// Libraries below libtorch and the collectives report out of memory only in the message text.
  [[noreturn]] void fail_by_message(compute_fault fault, const std::string& where,
                                    const std::string& why) const {
    for (const auto* phrase : {"out of memory", "ALLOC_FAILED"})
      if (why.find(phrase) != std::string::npos) fail_for_memory(where, why);
    fail(fault, where, why);
  }
  /// Calls `work` and converts any exception to a compute_error.
  template <class Work>
  auto guarded(compute_fault fault, const std::string& where, Work work) const {
    try {
      return work();
    } catch (const compute_error&) {
      throw;
    } catch (const group_error& e) {
      fail_by_message(compute_fault::collective, where, first_line_of(e));
    } catch (const c10::OutOfMemoryError& e) {
      fail_for_memory(where, first_line_of(e));
    } catch (const std::exception& e) {
      fail_by_message(fault, where, first_line_of(e));
    } catch (...) {
      fail(fault, where, "threw an object that is not a std::exception");
    }
  }

  stage_compute_config config_;
  std::shared_ptr<const batch_source> data_;
  memory_meter meter_;
  std::vector<chunk_state> chunks_;
  std::vector<placed_parameter> parameters_;  // in model order
  at::Tensor owner_, copy_;  // the sides of the tied parameter on this stage, unless frozen
  bool is_tie_joined_ = false;
  std::unique_ptr<optimizer> optimizer_;
  loss_scaler scaler_;
  bool is_unscaled_ = false;  ///< the gradients no longer have the factor of the loss
  std::optional<step_id> step_;
  std::uint32_t microbatches_ = 0;  ///< of this step
  microbatch_shares shares_;
  std::vector<sum_part> parts_;  ///< of this replica
  bool is_sum_joined_ = false;   ///< what another rank has opened is here
  at::Tensor opened_sum_;        ///< to be taken
  step_purpose purpose_ = step_purpose::training;
  std::int64_t step_tokens_ = 0;
  mutable std::vector<std::optional<microbatch_loss>> losses_;
  mutable std::vector<late_loss> late_losses_;
};

}  // namespace rrfp::compute

/// The implementation of stage_compute: stage_run.cpp runs a step, stage_backward.cpp its
/// backwards, shared_sums.cpp the gradient sums of a step whose replicas run microbatches of
/// others, stage_compute.cpp reports the state.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/edge.h>

#include <rrfp/compute/compute_error.hpp>
#include <rrfp/torch/optimizer.hpp>
#include <rrfp/torch/stage_compute.hpp>
#include "loss_scaler.hpp"
#include "split_trial.hpp"
#include "weight_stash.hpp"

namespace rrfp::compute {

/// `t`, or a copy that is contiguous and aligned as libtorch allocates: with less alignment matrix
/// products may sum in another order.
at::Tensor aligned(at::Tensor t);
const void* memory_of(const at::Tensor& t);

/// What travels in place of a gradient that does not exist: the loss does not depend on the tensor.
inline at::Tensor no_gradient(at::Device device) {
  return at::empty({0}, at::TensorOptions{}.device(device));
}
inline bool is_no_gradient(const at::Tensor& t) { return t.dim() == 1 && t.numel() == 0; }

/// The gradient of a tied parameter; undefined if neither side has one.
at::Tensor sum_of_sides(const at::Tensor& owner, const at::Tensor& copy);

/// Frees the records of a stash, which may hold references to it, with the stage's reference.
struct stash_release {
  void operator()(weight_stash* stash) const {
    c10::intrusive_ptr<weight_stash>::reclaim(stash)->clear();
  }
};

/// One microbatch on one chunk, between its F and its fold.
struct in_flight {
  at::Tensor input;  // the leaf whose gradient goes back; undefined on the first virtual stage
  /// Root of the backward graph. The output itself is not kept: its memory belongs to the
  /// neighbour.
  torch::autograd::Edge root;
  std::unique_ptr<weight_stash, stash_release> stash;
  /// Operators other than linear() and embedding() use a matrix.
  bool has_ordinary_matrix = false;
  bool is_split = false;         ///< W runs a part of the graph
  std::int64_t backward_ns = 0;  ///< processor time of the backward so far, during the trial
  bool is_backward_done = false;
};

/// A gradient of each parameter that a chunk trains; undefined where there is none.
using gradients = std::vector<at::Tensor>;

struct chunk_state {
  std::unique_ptr<stage_module> module;
  virtual_stage_id vs;
  /// Parameters that get a gradient in this step.
  std::vector<at::Tensor> trained;
  std::unordered_set<const at::TensorImpl*> is_trained;
  std::vector<in_flight> microbatches;
  std::uint32_t folded = 0;  // microbatches 0 .. folded - 1 are folded
  split_trial trial;
  // If replicas run microbatches of others; the gradient of a parameter is that of `part` alone:
  std::size_t part = 0;                  ///< whose microbatches are folded
  std::uint32_t part_folded = 0;         ///< of its microbatches
  std::map<replica_id, gradients> sums;  ///< of complete parts, and of what another rank has opened
  std::vector<gradients> held;           ///< by microbatch: to be added to what another rank opens
};

/// A loss that the device may still be computing.
struct late_loss {
  task source;
  at::Tensor sum;
  std::int64_t tokens = 0;
};

/// A parameter and its place in the model.
struct placed_parameter {
  parameter p;
  parameter_position at;
};

class stage_compute::impl {
 public:
  impl(const stage_compute_config& config, std::vector<std::unique_ptr<stage_module>> chunks,
       std::shared_ptr<const batch_source> data);

  void begin_step(step_id step, step_purpose purpose, const microbatch_shares& microbatches);
  at::Tensor run(const launch& l, at::Tensor input);
  void apply(double scale, double lr);
  void end_without_update();
  void abort_step();
  void join_local_tie();
  /// A gradient that only another member of `group` has becomes zeros here, so that all members
  /// update the same parameters.
  void agree_on_gradients(rank_group& group, const std::vector<at::Tensor>& parameters);
  /// What restore() would set. Error: a tensor is missing or does not fit.
  struct matching;
  result<matching> match(std::span<const named_tensor> state) const;
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
  void join_opened_sum(const at::Tensor& sum);
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
  void store_loss(const task& t, double sum, std::int64_t tokens);
  /// Reads the losses that the device was still computing.
  void read_late_losses();
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
  std::vector<std::optional<microbatch_loss>> losses_;
  std::vector<late_loss> late_losses_;
};

}  // namespace rrfp::compute

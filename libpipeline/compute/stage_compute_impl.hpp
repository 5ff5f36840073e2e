/// The state of a stage_compute; stage_run.cpp drives it through a step, stage_compute.cpp reports
/// it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/edge.h>

#include <rrfp/compute/stage_compute.hpp>

#include <rrfp/compute/first_line.hpp>
#include <rrfp/compute/optimizer.hpp>
#include "weight_stash.hpp"

namespace rrfp::compute {

/// One microbatch on one chunk, between its F and its fold.
struct in_flight {
  at::Tensor input;  // the leaf whose gradient goes back; undefined on the first virtual stage
  /// Where the backward begins. The output itself is not kept: its memory belongs to the neighbour.
  torch::autograd::Edge root;
  c10::intrusive_ptr<weight_stash> stash;
  bool is_backward_done = false;
};

struct chunk_state {
  std::unique_ptr<stage_module> module;
  virtual_stage_id vs;
  /// Parameters that get a gradient, as settled when the stage was made.
  std::vector<at::Tensor> trained;
  std::unordered_set<const at::TensorImpl*> is_trained;
  std::vector<in_flight> microbatches;
  std::uint32_t folded = 0;  // microbatches 0 .. folded - 1 are
};

/// A loss that the device may still be computing.
struct late_loss {
  task of;
  at::Tensor sum;
  std::int64_t tokens = 0;
};

/// A parameter and its place in the model.
struct placed_parameter {
  parameter p;
  parameter_position at;
  bool is_trained = false;  ///< as settled when the stage was made
};

class stage_compute::impl {
 public:
  impl(const stage_compute_config& config, std::vector<std::unique_ptr<stage_module>> chunks,
       std::shared_ptr<const batch_source> data);

  void begin_step(step_id step, step_purpose purpose);
  at::Tensor run(const launch& l, at::Tensor input);
  void apply(double scale, double lr);
  void end_evaluation();
  void abort_step();
  void join_local_tie();
  void require_folded() const;
  bool has_last_chunk() const;
  bool is_training() const { return purpose_ == step_purpose::training; }
  /// Those that the optimizer steps, in its order.
  std::vector<parameter> trained_parameters() const;

  std::uint32_t rank() const { return config_.group ? config_.group->rank() : 0; }
  /// Whether this rank speaks for a parameter at the end of a step.
  bool reports(const parameter& p) const {
    return p.tied != tie::copy && (p.part.has_value() || rank() == 0);
  }

  /// What is trained is known to the optimizer and to checkpoints from the start.
  void require_the_same_trained() const;
  at::Tensor forward(const task& t, at::Tensor input);
  /// Keeps where the backward of `out` begins, once it is clear where its gradients go.
  void keep_root(const chunk_state& chunk, in_flight& mb, const task& t,
                 const at::Tensor& out) const;
  at::Tensor backward(const task& t, at::Tensor gradient, bool fold_inside);
  void fold(chunk_state& chunk, fold_range range, const in_flight* folded_inside);
  void record_loss(const task& t, const at::Tensor& sum, std::int64_t tokens);
  void note_loss(const task& t, double sum, std::int64_t tokens);
  /// Reads the losses that were still being computed.
  void settle_losses();
  /// `out` in memory of its own: what came in is given back while others may still read it, which
  /// an allocator of devices hears only of what it has made itself.
  at::Tensor owned(const at::Tensor& out, const void* given) const;
  /// In its own memory where that is not the host's.
  at::Tensor to_device(const at::Tensor& t) const;
  microbatch to_device(microbatch mb) const;
  /// Microbatches that hold memory here.
  std::size_t held_microbatches() const;
  [[noreturn]] void fail_for_memory(const std::string& where, const std::string& why) const;
  class lazy_microbatch;
  using load_function = microbatch (batch_source::*)(step_id, microbatch_id) const;
  microbatch load(const task& t, load_function how) const;
  microbatch_layout load_layout(const task& t) const;
  /// `input`: undefined on the first virtual stage.
  at::Tensor call_module(chunk_state& chunk, const task& t, const at::Tensor& input,
                         weight_stash& stash, microbatch_view& batch) const;
  [[noreturn]] void fail(compute_fault fault, const std::string& where,
                         const std::string& why) const;
  /// Libraries below libtorch, and groups that need memory of their own, say that there is none in
  /// words alone.
  [[noreturn]] void fail_as_told(compute_fault fault, const std::string& where,
                                 const std::string& why) const {
    for (const auto* said : {"out of memory", "ALLOC_FAILED"})
      if (why.find(said) != std::string::npos) fail_for_memory(where, why);
    fail(fault, where, why);
  }
  /// Calls `work`; whatever it throws becomes a compute_error.
  template <class Work>
  auto guarded(compute_fault fault, const std::string& where, Work work) const {
    try {
      return work();
    } catch (const compute_error&) {
      throw;
    } catch (const group_error& e) {
      fail_as_told(compute_fault::collective, where, first_line_of(e));
    } catch (const c10::OutOfMemoryError& e) {
      fail_for_memory(where, first_line_of(e));
    } catch (const std::exception& e) {
      fail_as_told(fault, where, first_line_of(e));
    } catch (...) {
      fail(fault, where, "something that is no std::exception was thrown");
    }
  }

  stage_compute_config config_;
  std::shared_ptr<const batch_source> data_;
  memory_meter meter_;
  std::vector<chunk_state> chunks_;
  std::vector<placed_parameter> parameters_;  // in model order
  at::Tensor owner_, copy_;  // the sides of the tied parameter that are here, unless frozen
  bool is_tie_joined_ = false;
  std::unique_ptr<optimizer> optimizer_;
  std::optional<step_id> step_;
  step_purpose purpose_ = step_purpose::training;
  std::int64_t step_tokens_ = 0;
  std::vector<std::optional<microbatch_loss>> losses_;
  std::vector<late_loss> late_losses_;
};

}  // namespace rrfp::compute

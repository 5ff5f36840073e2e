/// What a stage keeps of its microbatches and parameters during a step.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_set>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/edge.h>

#include <rrfp/compute/parameters.hpp>
#include <rrfp/torch/stage_module.hpp>

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
  at::ScalarType loss_type = at::kFloat;
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

}  // namespace rrfp::compute

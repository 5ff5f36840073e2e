/// Operators that can defer their weight gradients, and dropout that does not depend on the order
/// of execution.
///
/// The backward of linear() and embedding() computes the input gradient at once, because it is on
/// the critical path of the pipeline, and stores (input, output gradient) in the microbatch's
/// weight_stash. W computes the weight gradient from the stash with the operations of libtorch's
/// own backward, so the bits are the same. The split has no measurable cost. Weights of all other
/// operators are split by cutting the graph (docs/embedding.md).
///
/// Without a stash both are at::linear and at::embedding under ordinary autograd, so the same
/// module also trains in an ordinary loop with loss.backward() and torch::optim.
///
/// Stage modules call them in forward(). Thread-safe for different microbatches.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include <rrfp/base/ids.hpp>

namespace rrfp::compute {

/// Holds what W needs from B. Opaque: a module passes on the pointer from forward_input.
class weight_stash;

/// y = x * weight^T + bias. `x` float [..., in], `weight` [out, in], `bias` [out] or undefined;
/// returns [..., out]. The gradients equal autograd's bit for bit, whatever else uses the weights.
/// Only gradients of leaves go to the stash. A weight or bias that is the output of an operator (a
/// cast, a transpose, W + B * A), or has hooks, is used as by the ordinary operator, and one that
/// ordinary operators use as well gets its gradient in B.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  weight_stash* stash);

/// Rows of `weight` [n, width]. `indices` int64 of any shape; returns [..., width].
at::Tensor embedding(const at::Tensor& indices, const at::Tensor& weight, weight_stash* stash);

/// Identifies one dropout mask.
struct dropout_key {
  std::uint64_t seed = 0;
  step_id step;
  microbatch_id mb;
  std::uint32_t layer = 0;
  std::uint32_t site = 0;
};

/// Zeroes elements of `x` with `probability` and scales the others by 1 / (1 - probability). The
/// mask is a function of key and shape: each mask has its own generator, so neither the order of
/// execution nor other random numbers change it.
at::Tensor dropout(const at::Tensor& x, double probability, const dropout_key& key);

}  // namespace rrfp::compute

/// Operators whose weight gradient can be put off, and dropout that does not depend on order.
///
/// The backward of linear() and embedding() computes the input gradient at once (it is on the
/// critical path of the pipeline) and leaves (input, output gradient) in the microbatch's
/// weight_stash; the weight gradient is computed from there when W runs, with the very operations
/// that libtorch's own backward uses, so the bits are the same. Measured cost of the split: none.
///
/// Without a stash both are plain at::linear and at::embedding under ordinary autograd, so the same
/// module trains in an ordinary loop with loss.backward() and torch::optim.
///
/// Called by stage modules inside forward(); safe to call from any thread, one microbatch each.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include <rrfp/schedule/ids.hpp>

namespace rrfp::compute {

/// Holds what W needs between B and W. Opaque: a module takes it from forward_input and passes it
/// on.
class weight_stash;

/// y = x * weight^T + bias. `x` float [..., in], `weight` [out, in], `bias` [out] or undefined;
/// returns [..., out]. The gradients are autograd's, bit for bit, whatever else uses the weights.
/// They are put off for leaves; a weight or bias that other operators have made (a cast, a
/// transpose, W + B * A), that has hooks or that ordinary operators use as well gets its gradient
/// in B.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  weight_stash* stash);

/// Rows of `weight` [n, width]. `indices` int64 of any shape; returns [..., width].
at::Tensor embedding(const at::Tensor& indices, const at::Tensor& weight, weight_stash* stash);

/// Names one dropout mask.
struct dropout_key {
  std::uint64_t seed = 0;
  step_id step;
  microbatch_id mb;
  std::uint32_t layer = 0;
  std::uint32_t site = 0;
};

/// Zeroes elements of `x` with `probability` and scales the others by 1 / (1 - probability). The
/// mask follows from the key and the shape alone: a generator of its own is made for each, so
/// neither the order of execution nor any other use of random numbers changes it.
at::Tensor dropout(const at::Tensor& x, double probability, const dropout_key& key);

}  // namespace rrfp::compute

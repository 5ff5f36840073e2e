/// Shared by the operators that defer their weight gradients.
#pragma once

#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include "weight_stash.hpp"

namespace rrfp::compute {

/// Whether the gradient of a weight or bias can be deferred to W. The stash can add only to the
/// gradient of a leaf, and only autograd calls the hooks of a tensor.
inline bool is_deferrable(const at::Tensor& weight) {
  if (!weight.defined() || !weight.requires_grad()) return true;
  return weight.is_leaf() && torch::autograd::impl::hooks(weight).empty();
}

/// Whether the tensor is the only reference to its memory, so the memory may be modified or kept.
inline bool is_sole_owner(const at::Tensor& t) {
  return t.is_contiguous() && t.use_count() == 1 && t.storage().use_count() == 1 &&
         t.storage().nbytes() == t.nbytes();
}

/// A bias as an input of a Function; a Function does not accept undefined tensors.
inline std::optional<at::Tensor> if_defined(const at::Tensor& bias) {
  return bias.defined() ? std::optional{bias} : std::nullopt;
}

/// Deferred operators have the graph inputs (x, anchor, weight, bias). The inputs after the anchor
/// get their gradients from the stash, unless the stash leaves them to the graph.
inline void save(torch::autograd::AutogradContext* ctx, weight_stash* given,
                 const at::Tensor& weight, const at::Tensor& bias = {}) {
  auto stash = c10::intrusive_ptr<weight_stash>::reclaim_copy(given);
  ctx->saved_data["weight"] = stash->use(weight);
  ctx->saved_data["bias"] = stash->use(bias);
  ctx->saved_data["stash"] = c10::IValue::make_capsule(std::move(stash));
}

inline c10::intrusive_ptr<weight_stash> stash_of(torch::autograd::AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<weight_stash>(ctx->saved_data["stash"].toCapsule());
}

/// A weight in the compute type; master weights may be wider. Undefined stays undefined.
inline at::Tensor cast_like(const at::Tensor& weight, const at::Tensor& x) {
  return weight.defined() ? weight.to(x.scalar_type()) : weight;
}

/// The gradients of (x, anchor, weight, bias) of a linear layer; undefined where the stash computes
/// the gradient or none is needed. The saved variables are x and the detached weight.
inline torch::autograd::variable_list backward_of_linear(torch::autograd::AutogradContext* ctx,
                                                         const at::Tensor& gy) {
  at::Tensor gx;
  const auto saved = ctx->get_saved_variables();
  if (ctx->needs_input_grad(0)) {
    gx = gy.reshape({-1, gy.size(-1)}).mm(cast_like(saved[1], gy)).view_as(saved[0]);
  }
  auto of_weights = stash_of(ctx)->linear(ctx->saved_data["weight"].toInt(),
                                          ctx->saved_data["bias"].toInt(), saved[0], gy);
  return {gx, {}, std::move(of_weights.weight), std::move(of_weights.bias)};
}

}  // namespace rrfp::compute

/// What the operators that defer their weight gradients share.
#pragma once

#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "weight_stash.hpp"

namespace rrfp::compute {

/// Arguments that are no inputs of the graph: the weights have no edge in it, their gradients come
/// from the stash.
struct weight_arguments {
  weight_stash* stash;
  at::Tensor weight;
  at::Tensor bias;
};

inline void save(torch::autograd::AutogradContext* ctx, const weight_arguments& args) {
  auto stash = c10::intrusive_ptr<weight_stash>::reclaim_copy(args.stash);
  ctx->saved_data["weight"] = stash->use(args.weight);
  ctx->saved_data["bias"] = stash->use(args.bias);
  ctx->saved_data["stash"] = c10::IValue::make_capsule(std::move(stash));
}

inline c10::intrusive_ptr<weight_stash> stash_of(torch::autograd::AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<weight_stash>(ctx->saved_data["stash"].toCapsule());
}

/// A weight in the type that is computed in: masters may be wider. Undefined stays so.
inline at::Tensor like(const at::Tensor& weight, const at::Tensor& x) {
  return weight.defined() ? weight.to(x.scalar_type()) : weight;
}

/// The backward of a linear layer: leaves (x, gy) in the stash; undefined if x needs no gradient.
/// Saved variables are x and the detached weight.
inline at::Tensor backward_of_linear(torch::autograd::AutogradContext* ctx, const at::Tensor& gy) {
  at::Tensor gx;
  const auto saved = ctx->get_saved_variables();
  if (ctx->needs_input_grad(0)) {
    gx = gy.reshape({-1, gy.size(-1)}).mm(like(saved[1], gy)).view_as(saved[0]);
  }
  stash_of(ctx)->linear(ctx->saved_data["weight"].toInt(), ctx->saved_data["bias"].toInt(),
                        saved[0], gy);
  return gx;
}

}  // namespace rrfp::compute

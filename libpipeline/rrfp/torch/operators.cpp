#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/custom_function.h>

#include <rrfp/compute/keyed_hash.hpp>
#include <rrfp/torch/operators.hpp>

#include "deferred.hpp"

namespace rrfp::compute {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct deferred_linear : torch::autograd::Function<deferred_linear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& /*anchor*/,
                            const at::Tensor& weight, const std::optional<at::Tensor>& given_bias,
                            weight_stash* stash) {
    const auto bias = given_bias.value_or(at::Tensor{});
    save(ctx, stash, weight, bias);
    // The detached weight shares the version counter, so autograd reports a weight that changes
    // between F and B.
    ctx->save_for_backward({x, weight.detach()});
    return at::linear(x, cast_like(weight, x), cast_like(bias, x));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    auto of_inputs = backward_of_linear(ctx, gradients[0]);
    of_inputs.emplace_back();
    return of_inputs;
  }
};

struct deferred_embedding : torch::autograd::Function<deferred_embedding> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& indices,
                            const at::Tensor& /*anchor*/, const at::Tensor& weight,
                            weight_stash* stash) {
    save(ctx, stash, weight);
    ctx->save_for_backward({indices});
    return at::embedding(weight, indices);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    auto of_weight = stash_of(ctx)->embedding(ctx->saved_data["weight"].toInt(),
                                              ctx->get_saved_variables()[0], gradients[0]);
    return {{}, {}, std::move(of_weight), {}};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  weight_stash* stash) {
  if (stash == nullptr || !is_deferrable(weight) || !is_deferrable(bias))
    return at::linear(x, cast_like(weight, x), cast_like(bias, x));
  return deferred_linear::apply(x, stash->anchor(), weight, if_defined(bias), stash);
}

at::Tensor embedding(const at::Tensor& indices, const at::Tensor& weight, weight_stash* stash) {
  if (stash == nullptr || !is_deferrable(weight)) return at::embedding(weight, indices);
  return deferred_embedding::apply(indices, stash->anchor(), weight, stash);
}

at::Tensor dropout(const at::Tensor& x, double probability, const dropout_key& key) {
  if (probability <= 0) return x;
  const auto seed = keyed_hash({static_cast<std::uint64_t>(random_use::dropout_mask), key.seed,
                                key.step.value(), key.mb.value(), key.layer, key.site});
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  // B keeps the mask; as bytes it takes a quarter of a float32 mask.
  auto keep = at::empty(x.sizes(), at::kBool).bernoulli_(1 - probability, generator);
  // Drawn on the host for every device, so the mask is the same everywhere and in earlier runs.
  if (!x.is_cpu()) keep = keep.pin_memory().to(x.device(), /*non_blocking=*/true);
  return x.mul(keep).mul(1 / (1 - probability));
}

}  // namespace rrfp::compute

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <rrfp/compute/keyed_hash.hpp>
#include <rrfp/torch/parallel_operators.hpp>

namespace rrfp::compute {

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  weight_stash* stash) {
  return row_parallel_linear(x, weight, bias, stash, nullptr);
}

at::Tensor embedding(const at::Tensor& indices, const at::Tensor& weight, weight_stash* stash) {
  return parallel_embedding(indices, weight, stash, nullptr);
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

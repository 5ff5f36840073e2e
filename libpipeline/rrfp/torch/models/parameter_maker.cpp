#include "parameter_maker.hpp"

#include <utility>

#include <ATen/CPUGeneratorImpl.h>

#include <rrfp/compute/keyed_hash.hpp>
#include <rrfp/torch/tensors.hpp>

namespace rrfp::compute {

at::Tensor parameter_maker::normal(const std::string& name, at::IntArrayRef sizes, double deviation,
                                   const parameter_traits& traits) {
  if (device_.is_meta()) return zeros(name, sizes, traits);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(keyed_hash(
      {static_cast<std::uint64_t>(random_use::initial_weight), seed_, hash_of_name(name)}));
  return add(name, at::empty(sizes).normal_(0, deviation, generator), traits);
}

at::Tensor parameter_maker::zeros(const std::string& name, at::IntArrayRef sizes,
                                  const parameter_traits& traits) {
  return add(name, at::zeros(sizes, device_), traits);
}

at::Tensor parameter_maker::ones(const std::string& name, at::IntArrayRef sizes) {
  return add(name, at::ones(sizes, device_), {});
}

at::Tensor parameter_maker::add(const std::string& name, at::Tensor value,
                                const parameter_traits& traits) {
  std::optional<shard> part;
  if (traits.partition && is_parallel(group_)) {
    part = even_shard(value.sizes().vec(), traits.partition->dimension, traits.partition->blocks,
                      group_->rank(), group_->size());
    value = slice_of(value, *part);
  }
  value.requires_grad_();
  parameters_.push_back({name, value, traits.tied, std::move(part), traits.stored});
  return value;
}

}  // namespace rrfp::compute

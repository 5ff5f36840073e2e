/// Creates the parameters of a chunk in model order. Initial values follow from (seed, name), and
/// each rank creates the whole parameter and keeps its part, so the initial model does not depend
/// on the number of stages and ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <rrfp/compute/rank_group.hpp>
#include <rrfp/torch/stage_module.hpp>

namespace rrfp::compute {

using shared_group = std::shared_ptr<rank_group>;

/// The dimension and the number of blocks by which a parameter is sharded over the ranks (see
/// shard).
struct cut {
  std::int64_t dimension = 0;
  std::int64_t blocks = 1;
};

/// Properties of a parameter besides name, sizes and value.
struct parameter_traits {
  std::optional<cut> partition = std::nullopt;
  tie tied = tie::none;
  stored_form stored = {};
};

class parameter_maker {
 public:
  /// On at::kMeta parameters have sizes but no values.
  parameter_maker(std::uint64_t seed, shared_group group, at::Device device = at::kCPU)
      : seed_(seed), group_(std::move(group)), device_(device) {}

  at::Tensor normal(const std::string& name, at::IntArrayRef sizes, double deviation,
                    const parameter_traits& traits = {});
  at::Tensor zeros(const std::string& name, at::IntArrayRef sizes,
                   const parameter_traits& traits = {});
  at::Tensor ones(const std::string& name, at::IntArrayRef sizes);

  std::vector<parameter> take_parameters() { return std::move(parameters_); }

 private:
  at::Tensor add(const std::string& name, at::Tensor value, const parameter_traits& traits);

  std::uint64_t seed_;
  shared_group group_;
  at::Device device_;
  std::vector<parameter> parameters_;
};

}  // namespace rrfp::compute

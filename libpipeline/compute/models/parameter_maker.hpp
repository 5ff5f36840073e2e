/// Makes the parameters of a chunk in model order; their first values follow from (seed, name), so
/// every cut of the model starts from the same ones. Every rank makes all of a parameter and keeps
/// its part: the same model for any number of ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <rrfp/compute/rank_group.hpp>
#include <rrfp/compute/stage_module.hpp>

namespace rrfp::compute {

using shared_group = std::shared_ptr<rank_group>;

/// Along which dimension the ranks share a parameter, and in how many blocks (see shard).
struct cut {
  std::int64_t dimension = 0;
  std::int64_t blocks = 1;
};

/// What of a parameter is not its name, sizes and value.
struct parameter_traits {
  std::optional<cut> how = std::nullopt;
  tie tied = tie::none;
  stored_form stored = {};
};

class parameter_maker {
 public:
  /// On at::kMeta parameters have sizes and no values.
  parameter_maker(std::uint64_t seed, shared_group group, at::Device where = at::kCPU)
      : seed_(seed), group_(std::move(group)), where_(where) {}

  const shared_group& group() const { return group_; }

  at::Tensor normal(const std::string& name, at::IntArrayRef sizes, double deviation,
                    const parameter_traits& traits = {});
  at::Tensor zeros(const std::string& name, at::IntArrayRef sizes,
                   const parameter_traits& traits = {});
  at::Tensor ones(const std::string& name, at::IntArrayRef sizes);

  std::vector<parameter> take() { return std::move(parameters_); }

 private:
  at::Tensor add(const std::string& name, at::Tensor value, const parameter_traits& traits);

  std::uint64_t seed_;
  shared_group group_;
  at::Device where_;
  std::vector<parameter> parameters_;
};

}  // namespace rrfp::compute

/// A rank whose parameters, if it has any, are not the runtime's: there are no gradients to sum, no
/// updates and no state.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <rrfp/compute/rank_compute.hpp>

namespace rrfp::compute {

class without_parameters : public rank_compute {
 public:
  bool has_gradients() const final { return false; }
  void sum_gradients(rank_group&) final {}
  std::optional<tensor_buffer> tied_gradient() const final { return std::nullopt; }
  tie tied_side() const final { return tie::none; }
  void join_tied(const tensor_buffer&) final {}
  std::vector<parameter_norm> squared_norms() final { return {}; }
  void apply(double, double) final {}
  void end_without_update() final {}
  std::vector<parameter_hash> hashes() const final { return {}; }

  std::vector<microbatch_loss> losses() const override { return {}; }
  std::int64_t held_bytes() const override { return 0; }
  std::int64_t peak_bytes() const override { return 0; }
};

}  // namespace rrfp::compute

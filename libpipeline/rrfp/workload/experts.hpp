/// How many tokens each expert of a mixture-of-experts layer gets, which makes task times vary by
/// microbatch and layer.
///
/// dirichlet: the shares of the experts are drawn from a symmetric Dirichlet distribution for each
/// microbatch and layer, independently: Gamma(concentration) variables divided by their sum
/// (Marsaglia and Tsang 2000). A router that balances its load well has a high concentration. No
/// measurement stands behind the default: it is assumed, in the range of routers with a balancing
/// loss. With it the busiest of 8 experts gets 1.5 times the mean, and of 128 experts 2.0 times (in
/// the measure of arXiv 2408.15664, MaxVio 0.5 and 1.0). Popularity that stays over a step, and the
/// noise of few tokens, are left out.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <rrfp/base/ids.hpp>

namespace rrfp::workload {

enum class expert_spread : std::uint8_t { even, dirichlet };

std::string_view name(expert_spread s);

struct expert_options {
  expert_spread spread = expert_spread::dirichlet;
  double concentration = 10;
};

/// The share of the routed tokens that each of `experts` gets; the sum is 1. A pure function of its
/// arguments. `microbatch`: as in images_of().
std::vector<double> shares_of_experts(const expert_options& options, std::uint64_t seed,
                                      step_id step, std::uint64_t microbatch, std::uint32_t layer,
                                      std::uint32_t experts);

}  // namespace rrfp::workload

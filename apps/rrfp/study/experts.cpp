#include <rrfp/study/spreads.hpp>

#include <cmath>

#include <rrfp/base/check.hpp>
#include <rrfp/simulate/keyed_random.hpp>

namespace rrfp::study {

namespace {

/// Keeps these draws independent of all others.
constexpr std::uint64_t experts_salt = 0x65787065727473;

/// Marsaglia and Tsang 2000; for a shape below 1 with their boost.
double gamma(weather::keyed_random& random, double shape) {
  if (shape < 1) {
    const auto boost = std::pow(1 - random.uniform(), 1 / shape);
    return boost * gamma(random, shape + 1);
  }
  const auto d = shape - 1.0 / 3;
  const auto c = 1 / std::sqrt(9 * d);
  for (;;) {
    const auto x = random.normal();
    const auto v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log1p(-random.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v))
      return d * v;
  }
}

}  // namespace

std::vector<double> shares_of_experts(const expert_options& options, std::uint64_t seed,
                                      step_id step, std::uint64_t microbatch, std::uint32_t layer,
                                      std::uint32_t experts) {
  RRFP_CHECK(experts > 0, "a mixture has experts");
  std::vector<double> shares(experts, 1.0 / experts);
  if (options.spread == expert_spread::even) return shares;
  weather::keyed_random random{seed, experts_salt, step.value(), microbatch, layer};
  double sum = 0;
  for (auto& share : shares) sum += share = gamma(random, options.concentration);
  // With a tiny concentration every draw may underflow.
  if (sum == 0) sum = shares.front() = 1;
  for (auto& share : shares) share /= sum;
  return shares;
}

}  // namespace rrfp::study

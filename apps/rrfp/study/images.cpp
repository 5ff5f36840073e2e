#include <rrfp/study/spreads.hpp>

#include <algorithm>
#include <cmath>

#include <rrfp/base/check.hpp>
#include <rrfp/simulate/keyed_random.hpp>

namespace rrfp::study {

namespace {

/// Keeps these draws independent of the jitter's draws, whose keys have a salt in the same
/// position.
constexpr std::uint64_t images_salt = 0x696d61676573;

double draw(const image_counts& counts, double uniform) {
  switch (counts.spread) {
    case image_spread::fixed: return std::round(counts.mean);
    case image_spread::uniform: return std::floor(uniform * (2 * std::round(counts.mean) + 1));
    case image_spread::geometric:
      // P(n) = (1 - q) q^n has the mean q / (1 - q).
      if (counts.mean == 0) return 0;
      return std::floor(std::log1p(-uniform) / std::log(counts.mean / (1 + counts.mean)));
  }
  RRFP_CHECK(false, "unknown image_spread");
}

}  // namespace

std::vector<std::uint32_t> images_of(const image_counts& counts, std::uint64_t seed, step_id step,
                                     std::uint64_t microbatch, std::uint32_t samples) {
  weather::keyed_random random{seed, images_salt, step.value(), microbatch};
  std::vector<std::uint32_t> all(samples);
  for (auto& images : all)
    images = static_cast<std::uint32_t>(
        std::min(draw(counts, random.uniform()), static_cast<double>(counts.most)));
  return all;
}

}  // namespace rrfp::study

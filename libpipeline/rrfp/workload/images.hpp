/// The number of images in a sample, which makes some microbatches of a multimodal step more
/// expensive than others.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <rrfp/base/ids.hpp>

namespace rrfp::workload {

/// fixed: `mean`, rounded. uniform: 0 to 2 `mean`, rounded. geometric: starts at 0, and P(n) falls
/// by a constant factor. All are cut at `most`.
enum class image_spread : std::uint8_t { fixed, uniform, geometric };

std::string_view name(image_spread s);

/// The default is an assumption for every workload, because nothing is known about the real
/// distribution: any number of images that fits into a sample of 1024 tokens at 256 tokens per
/// image, all equally likely.
struct image_counts {
  image_spread spread = image_spread::uniform;
  /// Mean before the cut at `most`.
  double mean = 2;
  std::uint32_t most = 4;
};

/// Maximum number of images in a sample.
inline constexpr std::uint32_t images_max = 64;

/// Number of images in each sample of a microbatch. A pure function of its arguments.
/// `microbatch` is numbered across replicas: replica r has r * m to r * m + m - 1.
std::vector<std::uint32_t> images_of(const image_counts& counts, std::uint64_t seed, step_id step,
                                     std::uint64_t microbatch, std::uint32_t samples);

}  // namespace rrfp::workload

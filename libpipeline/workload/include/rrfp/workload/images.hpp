/// How many images a sample carries: what makes one microbatch of a multimodal step dearer than the
/// next.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <rrfp/schedule/ids.hpp>

namespace rrfp::workload {

/// fixed: `mean`, rounded. uniform: 0 to 2 `mean`, rounded. geometric: P(n) falls by the same
/// factor from each n to the next, from 0 on. All cut at `most`.
enum class image_spread : std::uint8_t { fixed, uniform, geometric };

std::string_view name(image_spread s);

/// The default is an assumption, the same for every workload: any number that fits into a sample of
/// 1024 tokens with 256 tokens an image, all equally likely, for nothing is known about it.
struct image_counts {
  image_spread spread = image_spread::uniform;
  /// Before the cut.
  double mean = 2;
  std::uint32_t most = 4;
};

/// Images of all samples of a microbatch together. A pure function of its arguments; replicas count
/// their microbatches on: replica r has r * m to r * m + m - 1.
std::uint32_t images_of(const image_counts& counts, std::uint64_t seed, step_id step,
                        std::uint64_t microbatch, std::uint32_t samples);

}  // namespace rrfp::workload

/// The sizes of a microbatch, without its tensors.
#pragma once

#include <cstdint>
#include <vector>

namespace rrfp::compute {

/// In pixels.
struct image_size {
  std::int64_t height = 0;
  std::int64_t width = 0;

  bool operator==(const image_size&) const = default;
};

/// The boundaries of sequences and images in a microbatch; available to every chunk of the model.
struct microbatch_layout {
  std::vector<std::int64_t> lengths;  ///< tokens of each sequence, in order; none is 0
  std::vector<image_size> images;     ///< of each image, in order

  bool operator==(const microbatch_layout&) const = default;
};

}  // namespace rrfp::compute

/// Pictures as the model takes them: sides that are multiples of its patch, normalised colours.
#pragma once

#include <array>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include <rrfp/data/source.hpp>

#include "image_file.hpp"

namespace rrfp::data {

class image_scaler {
 public:
  /// Error: data.image_side_max is less than a patch.
  static result<image_scaler> make(const source_config& config);

  /// The size that a picture of `size` gets: shrunk until neither side is longer than
  /// image_side_max, then each side to the nearest multiple of the patch that is not longer either,
  /// at least one.
  compute::image_size fitted(compute::image_size size) const;
  /// Patches of a picture of a fitted size.
  std::uint64_t patches(compute::image_size fitted) const;
  /// Float [3, height, width] of size fitted(image.size): antialiased bilinear, colours in [0, 1]
  /// less the mean, over the deviation.
  at::Tensor scale(const pixels& image) const;

 private:
  image_scaler(std::int64_t patch, std::int64_t side_max) : patch_(patch), side_max_(side_max) {}

  std::int64_t patch_;
  std::int64_t side_max_;
  /// What each of the 256 values of red, green and blue becomes.
  std::array<std::array<float, 256>, 3> values_{};
};

}  // namespace rrfp::data

/// Scales images to multiples of the patch size and normalises their colours.
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

  /// The size after scaling. The image is shrunk until no side is longer than image_side_max; then
  /// each side becomes the nearest multiple of the patch, at least one patch and at most
  /// image_side_max.
  compute::image_size fitted(compute::image_size size) const;
  /// Number of patches of an image of size `fitted`.
  std::uint64_t patches(compute::image_size fitted) const;
  /// Float [3, height, width] of size fitted(image.size): antialiased bilinear scaling; colours are
  /// (value / 255 - mean) / deviation.
  at::Tensor scale(const pixels& image) const;

 private:
  image_scaler(std::int64_t patch, std::int64_t side_max) : patch_(patch), side_max_(side_max) {}

  std::int64_t patch_;
  std::int64_t side_max_;
  /// Normalised value for each of the 256 values of red, green and blue.
  std::array<std::array<float, 256>, 3> values_{};
};

}  // namespace rrfp::data

/// The formats behind image_file.hpp.
#pragma once

#include <cstdint>
#include <span>

#include "image_file.hpp"
#include "input_file.hpp"

namespace rrfp::data {

enum class image_format : std::uint8_t { unknown, png, jpeg };

/// By its first bytes, whatever its name.
image_format format_of(std::span<const std::uint8_t> head);

struct image_head {
  compute::image_size stored;     ///< rows and columns as they lie in the file
  std::uint32_t orientation = 1;  ///< see exif.hpp
};

/// As read_image_size(), before the image is turned.
sample_or<image_head> head_of(const input_file& file);

/// A whole file that says to be of `size`, which has been checked; other pixels are a fault. As
/// stored, not turned.
sample_or<pixels> decode_png(std::span<const std::uint8_t> bytes, compute::image_size size);
sample_or<pixels> decode_jpeg(std::span<const std::uint8_t> bytes, compute::image_size size);

}  // namespace rrfp::data

/// PNG and JPEG files as pixels. Files are not trusted: sizes are checked before memory is taken.
///
/// Transparent pixels are put on white, grey ones get three equal colours, 16 bits become 8. What a
/// camera notes about orientation is not obeyed; a JPEG of four colours (CMYK) is refused.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <rrfp/data/shapes.hpp>

#include "bad_sample.hpp"

namespace rrfp::data {

/// Of a file.
inline constexpr std::uint64_t image_bytes_max = std::uint64_t{256} << 20;
/// Height times width: a small file may say that it holds any number of them.
inline constexpr std::uint64_t image_pixels_max = std::uint64_t{1} << 26;

/// What the head of the file says, which is all that is read of it. Faults say what is wrong with
/// the file, without its path.
sample_or<compute::image_size> read_image_size(const std::string& path);

/// All of the file.
sample_or<pixels> read_image(const std::string& path);

/// The bytes of a PNG file.
result<std::vector<std::uint8_t>> encode_png(const pixels& image);

}  // namespace rrfp::data

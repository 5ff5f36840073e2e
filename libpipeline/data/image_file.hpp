/// PNG and JPEG files as pixels. Files are not trusted: sizes are checked before memory is taken.
///
/// The pixels are those that Hugging Face's loaders see, with Pillow's exif_transpose() and
/// convert("RGB"): turned as EXIF says (JPEG's APP1, PNG's eXIf, XMP), samples as stored whatever a
/// PNG says of gamma and colour spaces, transparency left out, grey as three equal colours, 16 bits
/// by their upper 8. Of 16 bits of grey alone, as there, 255 and more is white. A JPEG of four
/// colours (CMYK) is refused.
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

/// What the head of the file says, once it is turned; no pixels are read for it. Faults say what is
/// wrong with the file, without its path.
sample_or<compute::image_size> read_image_size(const std::string& path);

/// All of the file.
sample_or<pixels> read_image(const std::string& path);

/// The bytes of a PNG file.
result<std::vector<std::uint8_t>> encode_png(const pixels& image);

}  // namespace rrfp::data

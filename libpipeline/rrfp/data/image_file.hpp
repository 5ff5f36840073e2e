/// Decodes PNG and JPEG files. Files are not trusted: sizes are checked before memory is allocated.
///
/// The pixels equal those of Hugging Face's loaders, that is of Pillow's exif_transpose() and
/// convert("RGB"): rotated by EXIF (JPEG's APP1, PNG's eXIf) or XMP, without gamma or colour space
/// conversion, without transparency, grey as three equal colours. 16-bit colours keep their upper 8
/// bits; 16-bit grey is clamped to 255, as in Pillow. A CMYK JPEG is refused.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <rrfp/data/shapes.hpp>

#include "bad_sample.hpp"

namespace rrfp::data {

/// Largest image file, in bytes.
inline constexpr std::uint64_t image_bytes_max = std::uint64_t{256} << 20;
/// Largest height times width; the header of a small file may claim any number of pixels.
inline constexpr std::uint64_t image_pixels_max = std::uint64_t{1} << 26;

/// The size in the header, after rotation; decodes no pixels. Faults do not name the path.
sample_or<compute::image_size> read_image_size(const std::string& path);

/// Decodes the whole file.
sample_or<pixels> read_image(const std::string& path);

/// Decode a whole file whose header gives `size`, which has been checked. The pixels are as stored,
/// not rotated. Fault: the file is corrupt or has another size.
sample_or<pixels> decode_png(std::span<const std::uint8_t> bytes, compute::image_size size);
sample_or<pixels> decode_jpeg(std::span<const std::uint8_t> bytes, compute::image_size size);

/// Encodes an image as a PNG file.
result<std::vector<std::uint8_t>> encode_png(const pixels& image);

}  // namespace rrfp::data

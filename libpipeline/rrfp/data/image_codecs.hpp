/// The formats that image_file.hpp reads.
#pragma once

#include <cstdint>
#include <span>

#include "image_file.hpp"
#include "input_file.hpp"

namespace rrfp::data {

/// The orientation of a PNG. Reads all chunks, because metadata may follow the pixels. Looks where
/// Pillow's exif_transpose() looks: in eXIf, in the text "Raw profile type exif" (older than eXIf),
/// then in XMP. 1 if the file has no orientation, or ends before it.
std::uint32_t orientation_of_png(const input_file& file);

/// Decode a whole file whose header gives `size`, which has been checked. The pixels are as stored,
/// not rotated. Fault: the file is corrupt or has another size.
sample_or<pixels> decode_png(std::span<const std::uint8_t> bytes, compute::image_size size);
sample_or<pixels> decode_jpeg(std::span<const std::uint8_t> bytes, compute::image_size size);

}  // namespace rrfp::data

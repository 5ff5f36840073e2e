/// The formats that image_file.hpp reads.
#pragma once

#include <cstdint>
#include <span>

#include "image_file.hpp"

namespace rrfp::data {

/// Decode a whole file whose header gives `size`, which has been checked. The pixels are as stored,
/// not rotated. Fault: the file is corrupt or has another size.
sample_or<pixels> decode_png(std::span<const std::uint8_t> bytes, compute::image_size size);
sample_or<pixels> decode_jpeg(std::span<const std::uint8_t> bytes, compute::image_size size);

}  // namespace rrfp::data

/// Orientation of a PNG file: its chunks are walked to the end, for the notes may follow the
/// pixels.
#pragma once

#include <cstdint>

#include "input_file.hpp"

namespace rrfp::data {

/// As Pillow's exif_transpose() finds it: in eXIf, in the text "Raw profile type exif" of files
/// from before that chunk, else in XMP. 1 where the file has no such note, or ends before it.
std::uint32_t orientation_of_png(const input_file& file);

}  // namespace rrfp::data

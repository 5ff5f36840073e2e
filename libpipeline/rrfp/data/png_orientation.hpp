/// Orientation of a PNG file. Reads all chunks, because metadata may follow the pixels.
#pragma once

#include <cstdint>

#include "input_file.hpp"

namespace rrfp::data {

/// Looks where Pillow's exif_transpose() looks: in eXIf, in the text "Raw profile type exif" (older
/// than eXIf), then in XMP. 1 if the file has no orientation, or ends before it.
std::uint32_t orientation_of_png(const input_file& file);

}  // namespace rrfp::data

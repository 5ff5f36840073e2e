/// Image orientation from EXIF and XMP metadata. Values are those of EXIF's Orientation: 1 as
/// stored, 2 to 8 mirrored or rotated. Metadata is not trusted: malformed or truncated metadata is
/// ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <rrfp/data/shapes.hpp>

#include "input_file.hpp"

namespace rrfp::data {

inline std::string_view text_of(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The orientation in the first directory of an EXIF block, with or without a leading "Exif\0\0".
/// The value may be out of range.
std::optional<std::uint32_t> orientation_in_exif(std::span<const std::uint8_t> block);
/// The first tiff:Orientation of an XMP packet; the value may be out of range.
std::optional<std::uint32_t> orientation_in_xmp(std::string_view packet);

/// The orientation of a PNG. Reads all chunks, because metadata may follow the pixels. Looks where
/// Pillow's exif_transpose() looks: in eXIf, in the text "Raw profile type exif" (older than eXIf),
/// then in XMP. 1 if the file has no orientation, or ends before it.
std::uint32_t orientation_of_png(const input_file& file);

/// The display size of an image that is stored with `size`.
compute::image_size upright_size(compute::image_size size, std::uint32_t orientation);
/// The image as displayed. Orientations other than 2 to 8 leave it unchanged.
pixels upright(pixels stored, std::uint32_t orientation);

}  // namespace rrfp::data

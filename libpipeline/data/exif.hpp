/// Which way up a picture is, as cameras note it beside the pixels. Numbers are those of EXIF's
/// Orientation: 1 as stored, 2 to 8 mirrored or turned. Notes are not trusted: one that is broken
/// or cut short says nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <rrfp/data/shapes.hpp>

namespace rrfp::data {

/// What the first directory of an EXIF block says, with or without "Exif\0\0" before it. Any number
/// may stand there.
std::optional<std::uint32_t> orientation_in_exif(std::span<const std::uint8_t> block);
/// The first tiff:Orientation of an XMP packet.
std::optional<std::uint32_t> orientation_in_xmp(std::string_view packet);

/// The size that a picture stored as `size` is shown in.
compute::image_size upright_size(compute::image_size size, std::uint32_t orientation);
/// The picture as it is shown. Numbers other than 2 to 8 leave it as it is.
pixels upright(pixels stored, std::uint32_t orientation);

}  // namespace rrfp::data

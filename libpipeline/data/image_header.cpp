#include <algorithm>
#include <array>
#include <optional>

#include "image_codecs.hpp"
#include "image_file.hpp"
#include "input_file.hpp"

namespace rrfp::data {

namespace {

using compute::image_size;

bad_sample corrupt(const std::string& what) { return {bad_reason::corrupt_image, what}; }

/// Reads big-endian numbers of a file in turn.
class byte_reader {
 public:
  explicit byte_reader(const input_file& file) : file_(file) {}

  /// Nothing at the end of the file.
  std::optional<std::uint32_t> number(std::size_t bytes) {
    std::array<std::uint8_t, 4> raw{};
    if (offset_ + bytes > file_.size() || !file_.read(offset_, std::span{raw}.first(bytes)))
      return std::nullopt;
    offset_ += bytes;
    std::uint32_t n = 0;
    for (std::size_t i = 0; i < bytes; ++i) n = n << 8 | raw[i];
    return n;
  }
  void skip(std::uint64_t bytes) { offset_ += bytes; }

 private:
  const input_file& file_;
  std::uint64_t offset_ = 0;
};

/// Signature, then the chunk IHDR: its length and name, width, height.
sample_or<image_size> png_size(const input_file& file) {
  byte_reader in{file};
  in.skip(12);
  constexpr std::uint32_t ihdr = 0x49484452;
  if (in.number(4) != ihdr) return corrupt("expected a PNG that begins with IHDR");
  const auto width = in.number(4);
  const auto height = in.number(4);
  if (!width || !height) return corrupt("the PNG ends in its head");
  return image_size{*height, *width};
}

/// A JPEG is a row of segments, each a marker and most of them with a length; the frame (SOF)
/// stands before the first scan.
sample_or<image_size> jpeg_size(const input_file& file) {
  byte_reader in{file};
  in.skip(2);
  for (;;) {
    auto marker = in.number(1);
    if (marker && *marker != 0xFF) return corrupt("expected a JPEG marker");
    while (marker == 0xFF) marker = in.number(1);
    const auto length = in.number(2);
    if (!marker || !length) return corrupt("the JPEG ends in its head");
    if (*length < 2) return corrupt("a segment of the JPEG has no length");
    const bool is_frame =
        *marker >= 0xC0 && *marker <= 0xCF && *marker != 0xC4 && *marker != 0xC8 && *marker != 0xCC;
    if (is_frame) break;
    constexpr std::uint32_t end_of_image = 0xD9, start_of_scan = 0xDA;
    if (*marker == end_of_image || *marker == start_of_scan)
      return corrupt("the JPEG has no frame before its pixels");
    in.skip(*length - 2);
  }
  in.skip(1);  // bits of a sample
  const auto height = in.number(2);
  const auto width = in.number(2);
  if (!height || !width) return corrupt("the JPEG ends in its head");
  return image_size{*height, *width};
}

}  // namespace

image_format format_of(std::span<const std::uint8_t> head) {
  constexpr std::array<std::uint8_t, 8> png{0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
  constexpr std::array<std::uint8_t, 3> jpeg{0xFF, 0xD8, 0xFF};
  const auto begins_with = [&](std::span<const std::uint8_t> magic) {
    return head.size() >= magic.size() && std::equal(magic.begin(), magic.end(), head.begin());
  };
  if (begins_with(png)) return image_format::png;
  return begins_with(jpeg) ? image_format::jpeg : image_format::unknown;
}

sample_or<image_size> size_of(const input_file& file) {
  if (file.size() > image_bytes_max)
    return bad_sample{bad_reason::large_image, "expected an image of at most " +
                                                   std::to_string(image_bytes_max) +
                                                   " bytes, got " + std::to_string(file.size())};
  std::array<std::uint8_t, 8> head{};
  const auto known = std::min<std::uint64_t>(head.size(), file.size());
  if (auto got = file.read(0, std::span{head}.first(known)); !got)
    return bad_sample{bad_reason::missing_image, got.message()};
  const auto format = format_of(std::span{head}.first(known));
  if (format == image_format::unknown)
    return corrupt(file.size() == 0 ? "expected a PNG or JPEG image, got an empty file"
                                    : "expected a PNG or JPEG image, got something else");
  auto size = format == image_format::png ? png_size(file) : jpeg_size(file);
  const auto* is = std::get_if<image_size>(&size);
  if (is == nullptr) return size;
  const auto shown = std::to_string(is->width) + " x " + std::to_string(is->height);
  if (is->height == 0 || is->width == 0) return corrupt("the image is " + shown + " pixels");
  if (static_cast<std::uint64_t>(is->height) * static_cast<std::uint64_t>(is->width) >
      image_pixels_max)
    return bad_sample{bad_reason::large_image, "expected an image of at most " +
                                                   std::to_string(image_pixels_max) +
                                                   " pixels, got " + shown};
  return size;
}

sample_or<image_size> read_image_size(const std::string& path) {
  const auto file = input_file::open(path);
  if (!file) return bad_sample{bad_reason::missing_image, file.message()};
  return size_of(**file);
}

}  // namespace rrfp::data

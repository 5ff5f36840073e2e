#include "image_file.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "exif.hpp"

namespace rrfp::data {

namespace {

using compute::image_size;

enum class image_format : std::uint8_t { unknown, png, jpeg };

struct image_header {
  image_size stored;              ///< size in the file, before rotation
  std::uint32_t orientation = 1;  ///< see exif.hpp
};

bad_sample corrupt(const std::string& message) { return {bad_reason::corrupt_image, message}; }

/// Reads big-endian numbers of a file one after another.
class byte_reader {
 public:
  explicit byte_reader(const input_file& file) : file_(file) {}

  /// Nullopt at the end of the file.
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
  /// The next `most` bytes, or fewer at the end of the file.
  std::vector<std::uint8_t> bytes(std::size_t most) {
    std::vector<std::uint8_t> read(
        std::min<std::uint64_t>(most, file_.size() - std::min(offset_, file_.size())));
    if (!file_.read(offset_, read)) read.clear();
    offset_ += most;
    return read;
  }

 private:
  const input_file& file_;
  std::uint64_t offset_ = 0;
};

/// A PNG begins with the signature and the chunk IHDR: its length and name, width, height.
sample_or<image_header> read_png_header(const input_file& file) {
  byte_reader in{file};
  in.skip(12);
  constexpr std::uint32_t ihdr = 0x49484452;
  if (in.number(4) != ihdr) return corrupt("expected a PNG that begins with IHDR");
  const auto width = in.number(4);
  const auto height = in.number(4);
  if (!width || !height) return corrupt("the PNG ends in its header");
  return image_header{{*height, *width}, orientation_of_png(file)};
}

/// The orientation in the metadata segments before the pixels of a JPEG.
class jpeg_orientation {
 public:
  void add(std::span<const std::uint8_t> segment) {
    using namespace std::string_view_literals;
    const auto text = text_of(segment);
    if (text.starts_with("Exif\0\0"sv) && !is_exif_seen_) {
      is_exif_seen_ = true;
      by_exif_ = orientation_in_exif(segment);
    }
    if (text.starts_with("http://ns.adobe.com/xap/1.0/\0"sv)) by_xmp_ = orientation_in_xmp(text);
  }
  std::uint32_t value() const { return by_exif_ ? *by_exif_ : by_xmp_.value_or(1); }

 private:
  bool is_exif_seen_ = false;
  std::optional<std::uint32_t> by_exif_, by_xmp_;
};

/// A JPEG is a sequence of segments, each with a marker and most with a length; the frame (SOF)
/// precedes the first scan.
sample_or<image_header> read_jpeg_header(const input_file& file) {
  byte_reader in{file};
  in.skip(2);
  std::optional<image_size> size;
  jpeg_orientation metadata;
  for (;;) {
    auto marker = in.number(1);
    if (marker && *marker != 0xFF) return corrupt("expected a JPEG marker");
    while (marker == 0xFF) marker = in.number(1);
    const auto length = in.number(2);
    if (!marker || !length) return corrupt("the JPEG ends in its header");
    if (*length < 2) return corrupt("a segment of the JPEG has no length");
    constexpr std::uint32_t end_of_image = 0xD9, start_of_scan = 0xDA, application_1 = 0xE1;
    if (*marker == end_of_image || *marker == start_of_scan) break;
    const bool is_frame =
        *marker >= 0xC0 && *marker <= 0xCF && *marker != 0xC4 && *marker != 0xC8 && *marker != 0xCC;
    if (is_frame && !size) {
      const auto frame = in.bytes(*length - 2U);  // bits of a sample, height, width
      if (frame.size() < 5) return corrupt("the JPEG ends in its header");
      size = image_size{frame[1] << 8 | frame[2], frame[3] << 8 | frame[4]};
    } else if (*marker == application_1) {
      metadata.add(in.bytes(*length - 2U));
    } else {
      in.skip(*length - 2U);
    }
  }
  if (!size) return corrupt("the JPEG has no frame before its pixels");
  return image_header{*size, metadata.value()};
}

/// Detects the format from the first bytes; ignores the file name.
image_format format_of(std::span<const std::uint8_t> first_bytes) {
  using namespace std::string_view_literals;
  const auto text = text_of(first_bytes);
  if (text.starts_with("\x89PNG\r\n\x1A\n"sv)) return image_format::png;
  return text.starts_with("\xFF\xD8\xFF"sv) ? image_format::jpeg : image_format::unknown;
}

/// As read_image_size(), before rotation.
sample_or<image_header> header_of(const input_file& file) {
  if (file.size() > image_bytes_max)
    return bad_sample{bad_reason::large_image, "expected an image of at most " +
                                                   std::to_string(image_bytes_max) +
                                                   " bytes, got " + std::to_string(file.size())};
  std::array<std::uint8_t, 8> first{};
  const auto known = std::min<std::uint64_t>(first.size(), file.size());
  if (auto got = file.read(0, std::span{first}.first(known)); !got)
    return bad_sample{bad_reason::missing_image, got.message()};
  const auto format = format_of(std::span{first}.first(known));
  if (format == image_format::unknown)
    return corrupt(file.size() == 0 ? "expected a PNG or JPEG image, got an empty file"
                                    : "expected a PNG or JPEG image, got something else");
  auto header = format == image_format::png ? read_png_header(file) : read_jpeg_header(file);
  if (fault_of(header) != nullptr) return header;
  const auto [height, width] = std::get<image_header>(header).stored;
  const auto shown = std::to_string(width) + " x " + std::to_string(height);
  if (height == 0 || width == 0) return corrupt("the image is " + shown + " pixels");
  if (static_cast<std::uint64_t>(height) * static_cast<std::uint64_t>(width) > image_pixels_max)
    return bad_sample{bad_reason::large_image, "expected an image of at most " +
                                                   std::to_string(image_pixels_max) +
                                                   " pixels, got " + shown};
  return header;
}

}  // namespace

sample_or<image_size> read_image_size(const std::string& path) {
  const auto file = input_file::open(path);
  if (!file) return bad_sample{bad_reason::missing_image, file.message()};
  const auto header = header_of(**file);
  if (const auto* bad = fault_of(header)) return *bad;
  const auto& [stored, orientation] = std::get<image_header>(header);
  return upright_size(stored, orientation);
}

sample_or<pixels> read_image(const std::string& path) {
  const auto file = input_file::open(path);
  if (!file) return bad_sample{bad_reason::missing_image, file.message()};
  const auto header = header_of(**file);
  if (const auto* bad = fault_of(header)) return *bad;
  const auto [stored, orientation] = std::get<image_header>(header);
  std::vector<std::uint8_t> bytes((*file)->size());
  if (auto read = (*file)->read(0, bytes); !read)
    return bad_sample{bad_reason::missing_image, read.message()};
  auto image = format_of(bytes) == image_format::png ? decode_png(bytes, stored)
                                                     : decode_jpeg(bytes, stored);
  if (fault_of(image) != nullptr) return image;
  return upright(std::get<pixels>(std::move(image)), orientation);
}

}  // namespace rrfp::data

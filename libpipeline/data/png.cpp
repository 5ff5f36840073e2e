#include <png.h>

#include <array>

#include "image_codecs.hpp"

namespace rrfp::data {

namespace {

/// Frees what libpng holds, on every way out.
struct png_reader {
  png_image image{};

  png_reader() { image.version = PNG_IMAGE_VERSION; }
  png_reader(const png_reader&) = delete;
  png_reader& operator=(const png_reader&) = delete;
  ~png_reader() { png_image_free(&image); }

  bad_sample fault() const {
    return {bad_reason::corrupt_image, std::string{"the PNG does not decode: "} + image.message};
  }
};

/// `alpha` of 255 parts of `colour`, the rest white.
std::uint8_t on_white(std::uint32_t colour, std::uint32_t alpha) {
  return static_cast<std::uint8_t>((colour * alpha + 255 * (255 - alpha) + 127) / 255);
}

}  // namespace

sample_or<pixels> decode_png(std::span<const std::uint8_t> bytes, compute::image_size size) {
  png_reader reader;
  auto& image = reader.image;
  if (png_image_begin_read_from_memory(&image, bytes.data(), bytes.size()) == 0)
    return reader.fault();
  if (image.height != size.height || image.width != size.width)
    return bad_sample{bad_reason::corrupt_image, "the PNG has two sizes"};
  // Otherwise a file of 16 bits without a word on gamma is taken for linear light.
  image.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;
  image.format = PNG_FORMAT_RGBA;
  std::vector<std::uint8_t> rgba(std::size_t{4} * image.width * image.height);
  if (png_image_finish_read(&image, nullptr, rgba.data(), 0, nullptr) == 0) return reader.fault();
  pixels out{size, {}};
  out.rgb.reserve(rgba.size() / 4 * 3);
  // libpng would do this in linear light; viewers and other trainers do it on the values as stored.
  for (std::size_t i = 0; i < rgba.size(); i += 4)
    for (std::size_t c = 0; c < 3; ++c) out.rgb.push_back(on_white(rgba[i + c], rgba[i + 3]));
  return out;
}

result<std::vector<std::uint8_t>> encode_png(const pixels& image) {
  png_reader writer;
  writer.image.width = static_cast<png_uint_32>(image.size.width);
  writer.image.height = static_cast<png_uint_32>(image.size.height);
  writer.image.format = PNG_FORMAT_RGB;
  const auto failed = [&] { return error{std::string{"libpng: "} + writer.image.message}; };
  png_alloc_size_t bytes = 0;
  if (png_image_write_to_memory(&writer.image, nullptr, &bytes, 0, image.rgb.data(), 0, nullptr) ==
      0)
    return failed();
  std::vector<std::uint8_t> file(bytes);
  if (png_image_write_to_memory(&writer.image, file.data(), &bytes, 0, image.rgb.data(), 0,
                                nullptr) == 0)
    return failed();
  file.resize(bytes);
  return file;
}

}  // namespace rrfp::data

#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>

#include "image_file.hpp"

namespace rrfp::data {

namespace {

/// Frees libpng's memory on every path.
struct png_reader {
  std::span<const std::uint8_t> rest;
  char message[128] = {};  ///< of the error that ended the read
  png_structp png;
  png_infop info;

  explicit png_reader(std::span<const std::uint8_t> bytes)
      : rest(bytes),
        png(png_create_read_struct(PNG_LIBPNG_VER_STRING, this, store_error, ignore_warning)),
        info(png == nullptr ? nullptr : png_create_info_struct(png)) {}
  png_reader(const png_reader&) = delete;
  png_reader& operator=(const png_reader&) = delete;
  ~png_reader() { png_destroy_read_struct(&png, &info, nullptr); }

  bad_sample fault() const {
    return {bad_reason::corrupt_image, std::string{"the PNG does not decode: "} + message};
  }

  // libpng's callbacks.
  [[noreturn]] static void store_error(png_structp png, png_const_charp what) {
    auto& in = *static_cast<png_reader*>(png_get_error_ptr(png));
    std::snprintf(in.message, sizeof in.message, "%s", what);
    png_longjmp(png, 1);
  }
  static void ignore_warning(png_structp, png_const_charp) {}
  static void read_bytes(png_structp png, png_bytep to, png_size_t bytes) {
    auto& in = *static_cast<png_reader*>(png_get_io_ptr(png));
    if (bytes > in.rest.size()) png_error(png, "the file ends early");
    std::copy_n(in.rest.begin(), bytes, to);
    in.rest = in.rest.subspan(bytes);
  }
};

/// The samples as stored, without gamma, colour space, background or alpha conversion: rows of red,
/// green, blue, or of 16-bit grey.
struct png_samples {
  png_uint_32 width = 0;
  png_uint_32 height = 0;
  bool is_wide_grey = false;
  std::vector<std::uint8_t> bytes;
};

/// False: libpng reported an error. It reports errors by longjmp, so no local variable here may
/// have a destructor.
bool read_samples(png_reader& in, png_samples& to, compute::image_size expected) {
  auto* const png = in.png;
  auto* const info = in.info;
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_set_read_fn(png, &in, png_reader::read_bytes);
  // No chunk but those of the pixels: libpng would allocate as much as a text claims to have.
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_read_info(png, info);
  to.width = png_get_image_width(png, info);
  to.height = png_get_image_height(png, info);
  if (to.height != expected.height || to.width != expected.width)
    png_error(png, "it declares two different sizes");
  const bool is_grey = png_get_color_type(png, info) == PNG_COLOR_TYPE_GRAY;
  to.is_wide_grey = is_grey && png_get_bit_depth(png, info) == 16;
  if (is_grey) png_set_expand_gray_1_2_4_to_8(png);
  png_set_palette_to_rgb(png);
  png_set_strip_alpha(png);
  if (!to.is_wide_grey) {
    png_set_strip_16(png);
    png_set_gray_to_rgb(png);
  }
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, info);
  const auto row_bytes = png_get_rowbytes(png, info);
  if (row_bytes != std::size_t{to.width} * (to.is_wide_grey ? 2 : 3))
    png_error(png, "its rows have another length than its header gives");
  to.bytes.resize(row_bytes * to.height);
  for (int pass = 0; pass < passes; ++pass)
    for (png_uint_32 y = 0; y < to.height; ++y)
      png_read_row(png, to.bytes.data() + row_bytes * y, nullptr);
  return true;
}

}  // namespace

sample_or<pixels> decode_png(std::span<const std::uint8_t> bytes, compute::image_size size) {
  png_reader reader{bytes};
  if (reader.info == nullptr) throw std::bad_alloc{};
  png_samples samples;
  if (!read_samples(reader, samples, size)) return reader.fault();
  if (!samples.is_wide_grey) return pixels{size, std::move(samples.bytes)};
  pixels out{size, {}};
  out.rgb.reserve(samples.bytes.size() / 2 * 3);
  for (std::size_t i = 0; i < samples.bytes.size(); i += 2) {
    const auto grey = samples.bytes[i] == 0 ? samples.bytes[i + 1] : std::uint8_t{255};
    out.rgb.insert(out.rgb.end(), 3, grey);
  }
  return out;
}

result<std::vector<std::uint8_t>> encode_png(const pixels& image) {
  png_image made{};
  made.version = PNG_IMAGE_VERSION;
  made.width = static_cast<png_uint_32>(image.size.width);
  made.height = static_cast<png_uint_32>(image.size.height);
  made.format = PNG_FORMAT_RGB;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(made);
  std::vector<std::uint8_t> file(bytes);
  if (png_image_write_to_memory(&made, file.data(), &bytes, 0, image.rgb.data(), 0, nullptr) == 0)
    return error{std::string{"libpng: "} + made.message};
  file.resize(bytes);
  return file;
}

}  // namespace rrfp::data

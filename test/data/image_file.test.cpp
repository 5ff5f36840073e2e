// PNG and JPEG files: every colour type, and corrupt files of every kind.
#include <rrfp/data/image_file.hpp>

#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <cstdlib>

#include "support.hpp"

namespace rrfp::data::test {

namespace {

using bytes = std::vector<std::uint8_t>;

/// A PNG of any of libpng's formats; rows from the top.
template <class Sample>
bytes png_of(std::uint32_t format, std::uint32_t width, std::uint32_t height,
             const std::vector<Sample>& samples, std::uint32_t flags = 0) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = width;
  image.height = height;
  image.format = format;
  image.flags = flags;
  png_alloc_size_t size = 0;
  REQUIRE(png_image_write_to_memory(&image, nullptr, &size, 0, samples.data(), 0, nullptr) != 0);
  bytes file(size);
  REQUIRE(png_image_write_to_memory(&image, file.data(), &size, 0, samples.data(), 0, nullptr) !=
          0);
  file.resize(size);
  return file;
}

bytes jpeg_of(const pixels& image, int subsampling, int format = TJPF_RGB) {
  auto* const handle = tjInitCompress();
  unsigned char* file = nullptr;
  unsigned long size = 0;
  const int done = tjCompress2(handle, image.rgb.data(), static_cast<int>(image.size.width), 0,
                               static_cast<int>(image.size.height), format, &file, &size,
                               subsampling, 95, TJFLAG_ACCURATEDCT);
  bytes made(file, file + size);
  tjFree(file);
  tjDestroy(handle);
  REQUIRE(done == 0);
  return made;
}

struct files {
  scratch_folder folder;
  const std::string path = folder / "image";

  pixels read(const bytes& file) const {
    write(path, file);
    auto image = read_image(path);
    if (const auto* bad = fault_of(image)) FAIL(bad->message);
    CHECK(std::get<compute::image_size>(read_image_size(path)) == std::get<pixels>(image).size);
    return std::get<pixels>(image);
  }

  /// Reads both the header and the whole file; with `head_is_good` only the pixels are corrupt.
  void check_refused(const bytes& file, bad_reason reason, const std::string& what,
                     bool head_is_good = false) const {
    write(path, file);
    INFO(what);
    const auto image = read_image(path);
    REQUIRE(fault_of(image) != nullptr);
    CHECK(fault_of(image)->reason == reason);
    CHECK_THAT(fault_of(image)->message, Catch::Contains(what));
    const auto size = read_image_size(path);
    CHECK((fault_of(size) == nullptr) == head_is_good);
    if (!head_is_good) CHECK(fault_of(size)->message == fault_of(image)->message);
  }
};

/// Overwrites the width and height in a header.
void put(bytes& file, std::size_t at, std::uint32_t n, int size) {
  for (int i = size; i-- > 0; n >>= 8)
    file[at + static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(n);
}

constexpr std::size_t png_width_at = 16;
constexpr std::size_t png_height_at = 20;

/// The offset of the height in the frame of a JPEG; the width follows 2 bytes later.
std::size_t jpeg_height_at(const bytes& file) {
  for (std::size_t i = 0; i + 1 < file.size(); ++i)
    if (file[i] == 0xFF && file[i + 1] == 0xC0) return i + 5;
  FAIL("no frame");
  return 0;
}

}  // namespace

TEST_CASE("a PNG decodes to the pixels that were encoded") {
  const files f;
  for (const auto& image : {picture(1, 1), picture(7, 3), picture(40, 33)})
    CHECK(f.read(encode_png(image).value()) == image);
}

TEST_CASE("grey pixels of a PNG get three equal colours") {
  const files f;
  CHECK(f.read(png_of<std::uint8_t>(PNG_FORMAT_GRAY, 2, 1, {7, 200})) ==
        pixels{{1, 2}, {7, 7, 7, 200, 200, 200}});
}

TEST_CASE("a JPEG decodes to about the pixels that were encoded, colour or grey") {
  const files f;
  pixels smooth{{24, 40}, {}};
  for (int y = 0; y < 24; ++y)
    for (int x = 0; x < 40; ++x)
      for (const int v : {5 * x, 8 * y, 3 * x + 3 * y})
        smooth.rgb.push_back(static_cast<std::uint8_t>(v));
  const auto near = [](const pixels& a, const pixels& b, int tolerance) {
    REQUIRE(a.size == b.size);
    int worst = 0;
    for (std::size_t i = 0; i < a.rgb.size(); ++i)
      worst = std::max(worst, std::abs(a.rgb[i] - b.rgb[i]));
    CHECK(worst <= tolerance);
  };
  near(f.read(jpeg_of(smooth, TJSAMP_444)), smooth, 8);
  near(f.read(jpeg_of(smooth, TJSAMP_420)), smooth, 24);
  const auto grey = f.read(jpeg_of(smooth, TJSAMP_GRAY));
  CHECK(grey.size == smooth.size);
  for (std::size_t i = 0; i < grey.rgb.size(); i += 3) {
    CHECK(grey.rgb[i] == grey.rgb[i + 1]);
    CHECK(grey.rgb[i] == grey.rgb[i + 2]);
  }
  CHECK(f.read(jpeg_of(smooth, TJSAMP_444)) == f.read(jpeg_of(smooth, TJSAMP_444)));
}

TEST_CASE("the size of a JPEG is found after camera metadata") {
  const files f;
  auto file = jpeg_of(picture(9, 17), TJSAMP_444);
  bytes note{0xFF, 0xE1, 0xFF, 0xFF};
  note.resize(2 + 0xFFFF, 'x');
  note.insert(note.end(), {0xFF, 0xFF});  // markers may be preceded by any number of these
  file.insert(file.begin() + 2, note.begin(), note.end());
  CHECK(f.read(file).size == compute::image_size{9, 17});
}

TEST_CASE("a file that is not an image is refused") {
  const files f;
  const pixels inks{{4, 4}, bytes(64, 90)};
  f.check_refused(jpeg_of(inks, TJSAMP_444, TJPF_CMYK), bad_reason::corrupt_image, "got CMYK",
                  true);
  f.check_refused({}, bad_reason::corrupt_image, "got an empty file");
  f.check_refused({'G', 'I', 'F', '8', '9', 'a'}, bad_reason::corrupt_image,
                  "expected a PNG or JPEG image, got something else");
  f.check_refused({0x89, 'P', 'N', 'G', '\n'}, bad_reason::corrupt_image, "something else");
  f.check_refused({0xFF, 0xD8, 0xFF}, bad_reason::corrupt_image, "the JPEG ends in its header");
  f.check_refused({0xFF, 0xD8, 0xFF, 0xE0, 0, 1}, bad_reason::corrupt_image, "no length");
  f.check_refused({0xFF, 0xD8, 0xFF, 0xD9, 0, 2}, bad_reason::corrupt_image, "no frame");
  f.check_refused({0xFF, 0xD8, 0xFF, 0xE0, 0, 2, 7, 7}, bad_reason::corrupt_image,
                  "expected a JPEG marker");
  const auto missing = read_image(f.folder / "missing");
  REQUIRE(fault_of(missing) != nullptr);
  CHECK(fault_of(missing)->reason == bad_reason::missing_image);
  CHECK(fault_of(missing)->message == "cannot be read: No such file or directory");
  const auto folder = read_image_size(f.folder / "");
  REQUIRE(fault_of(folder) != nullptr);
  CHECK(fault_of(folder)->reason == bad_reason::missing_image);
}

TEST_CASE("a truncated image is refused wherever it ends") {
  const files f;
  const auto png = encode_png(picture(20, 20)).value();
  const auto jpeg = jpeg_of(picture(20, 20), TJSAMP_444);
  for (const auto& whole : {png, jpeg}) {
    const auto expected = f.read(whole);
    for (std::size_t size = 0; size + 1 < whole.size(); size += 1 + whole.size() / 97) {
      write(f.path, bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)));
      const auto image = read_image(f.path);
      INFO(size << " of " << whole.size());
      // Data after the last pixel may be missing.
      const auto* bad = fault_of(image);
      const bool is_whole = bad == nullptr && size + 20 > whole.size();
      if (is_whole) CHECK(std::get<pixels>(image) == expected);
      CHECK((is_whole || (bad != nullptr && bad->reason == bad_reason::corrupt_image)));
    }
  }
}

TEST_CASE("changed bytes at most make an image unreadable") {
  const files f;
  const auto png = encode_png(picture(12, 12)).value();
  const auto jpeg = jpeg_of(picture(12, 12), TJSAMP_420);
  for (const auto& whole : {png, jpeg})
    for (std::size_t at = 0; at < whole.size(); ++at) {
      auto changed = whole;
      changed[at] ^= static_cast<std::uint8_t>(1U << at % 8);
      write(f.path, changed);
      const auto image = read_image(f.path);
      const auto size = read_image_size(f.path);
      if (fault_of(image) == nullptr)
        CHECK(std::get<pixels>(image).size == std::get<compute::image_size>(size));
    }
}

TEST_CASE("a PNG whose pixels are damaged is refused by its checksum") {
  const files f;
  auto file = encode_png(picture(20, 20)).value();
  file[file.size() - 20] ^= 1;  // in the last chunk of pixels
  f.check_refused(file, bad_reason::corrupt_image, "the PNG does not decode", true);
}

TEST_CASE("an image of size 0 is refused") {
  const files f;
  auto png = encode_png(picture(4, 4)).value();
  put(png, png_width_at, 0, 4);
  f.check_refused(png, bad_reason::corrupt_image, "the image is 0 x 4 pixels");
  auto jpeg = jpeg_of(picture(4, 4), TJSAMP_444);
  put(jpeg, jpeg_height_at(jpeg), 0, 2);
  f.check_refused(jpeg, bad_reason::corrupt_image, "the image is 4 x 0 pixels");
}

TEST_CASE("a small file with a huge size in its header takes no memory") {
  const files f;
  auto png = encode_png(picture(4, 4)).value();
  put(png, png_width_at, 0x7FFFFFFF, 4);
  put(png, png_height_at, 0x7FFFFFFF, 4);
  f.check_refused(png, bad_reason::large_image,
                  "expected an image of at most 67108864 pixels, got 2147483647 x 2147483647");
  auto jpeg = jpeg_of(picture(4, 4), TJSAMP_444);
  put(jpeg, jpeg_height_at(jpeg), 65000, 2);
  put(jpeg, jpeg_height_at(jpeg) + 2, 65001, 2);
  f.check_refused(jpeg, bad_reason::large_image, "got 65001 x 65000");
  // Just within the limit the error is the missing pixels.
  put(jpeg, jpeg_height_at(jpeg), 8192, 2);
  put(jpeg, jpeg_height_at(jpeg) + 2, 8192, 2);
  f.check_refused(jpeg, bad_reason::corrupt_image, "the JPEG does not decode", true);
  std::filesystem::resize_file(f.path, image_bytes_max + 1);
  const auto large = read_image_size(f.path);
  REQUIRE(fault_of(large) != nullptr);
  CHECK(fault_of(large)->message == "expected an image of at most 268435456 bytes, got 268435457");
}

}  // namespace rrfp::data::test

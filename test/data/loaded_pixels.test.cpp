// Images as Hugging Face's loaders see them. The tables hold the output of Pillow 13 for the same
// files: ImageOps.exif_transpose(Image.open(file)).convert("RGB").
#include <rrfp/data/image_file.hpp>

#include <turbojpeg.h>
#include <zlib.h>

#include "support.hpp"

namespace rrfp::data::test {

namespace {

using bytes = std::vector<std::uint8_t>;

void append(bytes& to, const bytes& more) { to.insert(to.end(), more.begin(), more.end()); }

bytes big_endian(std::uint32_t n, int size = 4) {
  bytes made;
  for (int shift = 8 * size; shift > 0; shift -= 8)
    made.push_back(static_cast<std::uint8_t>(n >> (shift - 8)));
  return made;
}

bytes text(const std::string& s) { return {s.begin(), s.end()}; }

bytes joined(std::initializer_list<bytes> parts) {
  bytes all;
  for (const auto& part : parts) append(all, part);
  return all;
}

bytes packed(const bytes& plain) {
  bytes made(compressBound(static_cast<uLong>(plain.size())));
  auto size = static_cast<uLongf>(made.size());
  REQUIRE(compress(made.data(), &size, plain.data(), static_cast<uLong>(plain.size())) == Z_OK);
  made.resize(size);
  return made;
}

bytes chunk(const std::string& type, const bytes& data) {
  const auto named = joined({text(type), data});
  const auto sum = crc32(0, named.data(), static_cast<uInt>(named.size()));
  return joined({big_endian(static_cast<std::uint32_t>(data.size())), named,
                 big_endian(static_cast<std::uint32_t>(sum))});
}

enum colours : std::uint8_t { grey = 0, rgb = 2, palette = 3, grey_alpha = 4, rgb_alpha = 6 };

struct png {
  std::uint32_t width, height;
  std::uint8_t bits;
  colours kind;
  std::vector<bytes> rows;
  bytes before = {};  ///< chunks before the pixels
  bytes after = {};

  bytes file() const {
    bytes raw;
    for (const auto& row : rows) append(raw, joined({{0}, row}));
    return joined(
        {{0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'},
         chunk("IHDR", joined({big_endian(width), big_endian(height), {bits, kind, 0, 0, 0}})),
         before,
         chunk("IDAT", packed(raw)),
         after,
         chunk("IEND", {})});
  }
};

bytes wide(const std::vector<std::uint32_t>& samples) {
  bytes made;
  for (const auto s : samples) append(made, big_endian(s, 2));
  return made;
}

/// An EXIF block with nothing but an orientation.
bytes exif(std::uint8_t orientation, bool is_big_endian = true, bool is_long = false) {
  const std::uint8_t type = is_long ? 4 : 3;
  if (!is_big_endian)
    return {'I', 'I', '*', 0, 8, 0,           0, 0, 1, 0, 0x12, 1, type,
            0,   1,   0,   0, 0, orientation, 0, 0, 0, 0, 0,    0, 0};
  const std::uint8_t high = is_long ? 0 : orientation, low = is_long ? orientation : 0;
  return {'M',  'M', 0, '*', 0, 0, 0,    8, 0,   1, 1, 0x12, 0,
          type, 0,   0, 0,   1, 0, high, 0, low, 0, 0, 0,    0};
}

struct reader {
  scratch_folder folder;
  const std::string path = folder / "image";

  pixels read(const bytes& file) const {
    write(path, file);
    const auto image = read_image(path);
    if (const auto* bad = fault_of(image)) FAIL(bad->message);
    // The header gives the same size, with which batches are planned.
    CHECK(std::get<compute::image_size>(read_image_size(path)) == std::get<pixels>(image).size);
    return std::get<pixels>(image);
  }
  bytes colours_of(const png& image) const {
    const auto read_back = read(image.file());
    CHECK(read_back.size == compute::image_size{image.height, image.width});
    return read_back.rgb;
  }
};

bytes thrice(const bytes& greys) {
  bytes made;
  for (const auto g : greys) made.insert(made.end(), 3, g);
  return made;
}

const bytes colours_of_palette{255, 0, 0, 0, 255, 0, 10, 20, 30};

/// Three by two pixels of different colours.
png numbered(const bytes& before, const bytes& after = {}) {
  return {3,      2,    8, rgb, {{1, 2, 3, 4, 5, 6, 7, 8, 9}, {11, 12, 13, 14, 15, 16, 17, 18, 19}},
          before, after};
}

/// The result for numbered() by orientation; the first two leave it unchanged.
struct turned {
  std::uint8_t orientation;
  std::int64_t height, width;
  bytes rgb;
};
const std::vector<turned> all_turned{
    {0, 2, 3, {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19}},
    {1, 2, 3, {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19}},
    {2, 2, 3, {7, 8, 9, 4, 5, 6, 1, 2, 3, 17, 18, 19, 14, 15, 16, 11, 12, 13}},
    {3, 2, 3, {17, 18, 19, 14, 15, 16, 11, 12, 13, 7, 8, 9, 4, 5, 6, 1, 2, 3}},
    {4, 2, 3, {11, 12, 13, 14, 15, 16, 17, 18, 19, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
    {5, 3, 2, {1, 2, 3, 11, 12, 13, 4, 5, 6, 14, 15, 16, 7, 8, 9, 17, 18, 19}},
    {6, 3, 2, {11, 12, 13, 1, 2, 3, 14, 15, 16, 4, 5, 6, 17, 18, 19, 7, 8, 9}},
    {7, 3, 2, {17, 18, 19, 7, 8, 9, 14, 15, 16, 4, 5, 6, 11, 12, 13, 1, 2, 3}},
    {8, 3, 2, {7, 8, 9, 17, 18, 19, 4, 5, 6, 14, 15, 16, 1, 2, 3, 11, 12, 13}},
    {9, 2, 3, {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19}}};

pixels turned_by(std::uint8_t orientation) {
  const auto& t = all_turned[orientation];
  return {{t.height, t.width}, t.rgb};
}

}  // namespace

TEST_CASE("transparency of a PNG is dropped, not blended with a background") {
  const reader r;
  CHECK(r.colours_of({2, 1, 8, rgb_alpha, {{200, 100, 0, 51, 9, 8, 7, 0}}}) ==
        bytes{200, 100, 0, 9, 8, 7});
  CHECK(r.colours_of({3, 1, 8, grey_alpha, {{100, 51, 200, 0, 7, 255}}}) == thrice({100, 200, 7}));
  const auto is_clear = chunk("tRNS", {0, 0x80});
  CHECK(r.colours_of({3, 1, 8, grey, {{7, 128, 200}}, is_clear}) == thrice({7, 128, 200}));
  CHECK(r.colours_of({2, 1, 8, rgb, {{7, 128, 200, 1, 2, 3}}, chunk("tRNS", {0, 1, 0, 2, 0, 3})}) ==
        bytes{7, 128, 200, 1, 2, 3});
  CHECK(r.colours_of({1, 1, 8, rgb_alpha, {{1, 50, 100, 0}}, chunk("bKGD", {0, 9, 0, 9, 0, 9})}) ==
        bytes{1, 50, 100});
}

TEST_CASE("a palette gives its colours, with transparency or without, of any depth") {
  const reader r;
  const auto plain = chunk("PLTE", colours_of_palette);
  const auto clear = joined({plain, chunk("tRNS", {0, 128})});
  CHECK(r.colours_of({3, 1, 8, palette, {{0, 1, 2}}, clear}) == colours_of_palette);
  CHECK(r.colours_of({3, 1, 4, palette, {{0x01, 0x20}}, clear}) == colours_of_palette);
  CHECK(r.colours_of({3, 1, 2, palette, {{0x18}}, plain}) == colours_of_palette);
  CHECK(r.colours_of({3, 1, 1, palette, {{0x40}}, chunk("PLTE", {255, 0, 0, 0, 255, 0})}) ==
        bytes{255, 0, 0, 0, 255, 0, 255, 0, 0});
  // A number beyond the palette is black.
  CHECK(r.colours_of({3, 1, 8, palette, {{0, 5, 200}}, plain}) ==
        bytes{255, 0, 0, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("grey of fewer bits is stretched over the whole range") {
  const reader r;
  CHECK(r.colours_of({8, 1, 1, grey, {{0xA5}}}) == thrice({255, 0, 255, 0, 0, 255, 0, 255}));
  CHECK(r.colours_of({4, 1, 2, grey, {{0x1B}}}) == thrice({0, 85, 170, 255}));
  CHECK(r.colours_of({2, 1, 4, grey, {{0x3C}}}) == thrice({51, 204}));
  CHECK(r.colours_of({8, 1, 1, grey, {{0xA5}}, chunk("tRNS", {0, 0})}) ==
        thrice({255, 0, 255, 0, 0, 255, 0, 255}));
}

TEST_CASE("16-bit colours keep their upper 8 bits, and 16-bit grey is clamped to 255") {
  const reader r;
  CHECK(r.colours_of({2, 1, 16, rgb, {wide({30000, 255, 256, 65535, 32767, 128})}}) ==
        bytes{117, 0, 1, 255, 127, 0});
  CHECK(r.colours_of({1, 1, 16, rgb_alpha, {wide({30000, 255, 256, 100})}}) == bytes{117, 0, 1});
  CHECK(r.colours_of({3, 1, 16, grey_alpha, {wide({30000, 65535, 30000, 100, 65535, 0})}}) ==
        thrice({117, 117, 255}));
  CHECK(r.colours_of({7, 1, 16, grey, {wide({0, 1, 128, 255, 256, 30000, 65535})}}) ==
        thrice({0, 1, 128, 255, 255, 255, 255}));
}

TEST_CASE("gamma and colour spaces of a PNG change no sample") {
  const reader r;
  const bytes row{1, 50, 100, 150, 200, 250};
  const auto linear = chunk("gAMA", big_endian(100000));
  const auto srgb = joined({chunk("sRGB", {0}), chunk("gAMA", big_endian(45455))});
  CHECK(r.colours_of({2, 1, 8, rgb, {row}, linear}) == row);
  CHECK(r.colours_of({2, 1, 8, rgb, {row}, srgb}) == row);
  CHECK(r.colours_of({3, 1, 8, grey, {{7, 128, 200}}, linear}) == thrice({7, 128, 200}));
  CHECK(r.colours_of({3, 1, 8, grey, {{7, 128, 200}}, chunk("sBIT", {5})}) ==
        thrice({7, 128, 200}));
}

TEST_CASE("a PNG is rotated by its EXIF block, before or after the pixels") {
  const reader r;
  for (const auto& t : all_turned) {
    INFO("orientation " << int{t.orientation});
    const pixels expected{{t.height, t.width}, t.rgb};
    for (const bool is_big_endian : {true, false})
      for (const bool is_long : {true, false})
        CHECK(r.read(numbered(chunk("eXIf", exif(t.orientation, is_big_endian, is_long))).file()) ==
              expected);
  }
  CHECK(r.read(numbered({}, chunk("eXIf", exif(6))).file()) == turned_by(6));
}

TEST_CASE("a PNG is rotated by an EXIF block in a text chunk or by XMP") {
  const reader r;
  std::string digits;
  for (const auto b : joined({text("Exif"), {0, 0}, exif(6)}))
    for (const auto half : {b >> 4, b & 15}) digits += "0123456789abcdef"[half];
  const auto profile = text("\nexif\n      32\n" + digits + "\n");
  const auto keyword = joined({text("Raw profile type exif"), {0}});
  CHECK(r.read(numbered(chunk("zTXt", joined({keyword, {0}, packed(profile)}))).file()) ==
        turned_by(6));
  CHECK(r.read(numbered(chunk("tEXt", joined({keyword, profile}))).file()) == turned_by(6));

  const auto xmp = text("<rdf:Description tiff:Orientation=\"8\"/>");
  const auto name = joined({text("XML:com.adobe.xmp"), {0}});
  const auto plain = chunk("iTXt", joined({name, {0, 0, 0, 0}, xmp}));
  CHECK(r.read(numbered(plain).file()) == turned_by(8));
  CHECK(r.read(numbered(chunk("iTXt", joined({name, {1, 0, 0, 0}, packed(xmp)}))).file()) ==
        turned_by(8));
  // EXIF takes precedence.
  CHECK(r.read(numbered(joined({plain, chunk("eXIf", exif(3))})).file()) == turned_by(3));
}

TEST_CASE("a malformed orientation is ignored") {
  const reader r;
  auto cut = exif(6);
  cut.resize(20);
  auto two = exif(6, false);
  two[14] = 2;  // numbers of orientation
  auto far = exif(6, false);
  far[7] = 0xFF;  // where the directory begins
  for (const auto& block : {bytes{}, text("rubbish"), cut, two, far})
    CHECK(r.read(numbered(chunk("eXIf", block)).file()) == turned_by(1));
  const auto keyword = joined({text("Raw profile type exif"), {0}});
  for (const auto& rest : {bytes{}, bytes{0}, bytes{0, 1, 2, 3}, bytes{1}})
    CHECK(r.read(numbered(chunk("zTXt", joined({keyword, rest}))).file()) == turned_by(1));
}

TEST_CASE("a JPEG is rotated by its EXIF block or XMP") {
  const reader r;
  const auto jpeg = [&](const bytes& notes) {
    // Uniform grey blocks of the compression unit, so compression is lossless.
    pixels image{{16, 24}, {}};
    for (int y = 0; y < 16; ++y)
      for (int x = 0; x < 24; ++x)
        image.rgb.insert(image.rgb.end(), 3,
                         static_cast<std::uint8_t>(40 * (1 + x / 8 + 3 * (y / 8))));
    auto* const handle = tjInitCompress();
    unsigned char* made = nullptr;
    unsigned long size = 0;
    const int done = tjCompress2(handle, image.rgb.data(), 24, 0, 16, TJPF_RGB, &made, &size,
                                 TJSAMP_GRAY, 100, TJFLAG_ACCURATEDCT);
    bytes file(made, made + size);
    tjFree(made);
    tjDestroy(handle);
    REQUIRE(done == 0);
    file.insert(file.begin() + 2, notes.begin(), notes.end());
    return file;
  };
  const auto segment = [](const bytes& data) {
    return joined({{0xFF, 0xE1}, big_endian(static_cast<std::uint32_t>(data.size() + 2), 2), data});
  };
  const auto noted = [&](std::uint8_t orientation) {
    return segment(joined({text("Exif"), {0, 0}, exif(orientation)}));
  };
  /// The middle of each block, over 40.
  const auto blocks = [&](const pixels& p) {
    std::vector<int> all;
    for (std::int64_t y = 4; y < p.size.height; y += 8)
      for (std::int64_t x = 4; x < p.size.width; x += 8)
        all.push_back((p.rgb[static_cast<std::size_t>(3 * (y * p.size.width + x))] + 20) / 40);
    return all;
  };
  for (const auto& t : all_turned) {
    INFO("orientation " << int{t.orientation});
    const auto image = r.read(jpeg(noted(t.orientation)));
    CHECK(image.size == compute::image_size{8 * t.height, 8 * t.width});
    std::vector<int> expected;
    // 1, 4, 7, 11, 14, 17 are the blocks 1 to 6.
    for (std::size_t i = 0; i < t.rgb.size(); i += 3) expected.push_back((t.rgb[i] + 2) / 3);
    CHECK(blocks(image) == expected);
  }
  const auto xmp = segment(joined(
      {text("http://ns.adobe.com/xap/1.0/"), {0}, text("<tiff:Orientation>6</tiff:Orientation>")}));
  CHECK(r.read(jpeg(xmp)).size == compute::image_size{24, 16});
  CHECK(r.read(jpeg(joined({xmp, noted(3)}))).size == compute::image_size{16, 24});
}

}  // namespace rrfp::data::test

#include "exif.hpp"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

namespace rrfp::data {

namespace {

/// Bytes of an integer by TIFF type; 0 if the type is not an integer.
std::size_t integer_bytes(std::uint32_t type) {
  constexpr std::array<std::size_t, 10> bytes{0, 1, 0, 2, 4, 0, 1, 0, 2, 4};
  return type < bytes.size() ? bytes[type] : 0;
}

constexpr bool swaps_sides(std::uint32_t orientation) {
  return orientation >= 5 && orientation <= 8;
}

/// Largest metadata chunk and largest uncompressed text, in bytes. Larger ones are ignored.
constexpr std::size_t metadata_bytes_max = std::size_t{1} << 20;

std::optional<std::string> inflate_text(std::string_view compressed) {
  std::string text(metadata_bytes_max, '\0');
  auto bytes = static_cast<uLongf>(text.size());
  if (uncompress(reinterpret_cast<Bytef*>(text.data()), &bytes,
                 reinterpret_cast<const Bytef*>(compressed.data()),
                 static_cast<uLong>(compressed.size())) != Z_OK)
    return std::nullopt;
  text.resize(bytes);
  return text;
}

/// Removes a NUL-terminated word from the front of `from` and returns it.
std::optional<std::string_view> take_word(std::string_view& from) {
  const auto end = from.find('\0');
  if (end == std::string_view::npos) return std::nullopt;
  const auto word = from.substr(0, end);
  from.remove_prefix(end + 1);
  return word;
}

/// A text chunk: tEXt is plain, zTXt compressed, iTXt either, with two language words.
struct text_chunk {
  std::string type;
  std::string rest;  ///< after the keyword

  std::optional<std::string> text() const {
    std::string_view left = rest;
    if (type == "tEXt") return rest;
    const bool is_compressed = type == "zTXt" || left.starts_with('\1');
    const std::size_t flags = type == "zTXt" ? 1 : 2;
    if (left.size() < flags || left[flags - 1] != 0)
      return std::nullopt;  // 0 (deflate) is the only method
    left.remove_prefix(flags);
    if (type == "iTXt" && (!take_word(left) || !take_word(left))) return std::nullopt;
    return is_compressed ? inflate_text(left) : std::string{left};
  }
};

/// Decodes "\nexif\n  LENGTH\nHEX DIGITS IN LINES".
std::vector<std::uint8_t> bytes_of_profile(std::string_view text) {
  for (int line = 0; line < 3; ++line) {
    const auto end = text.find('\n');
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  std::vector<std::uint8_t> bytes;
  std::optional<int> upper;
  for (const char c : text) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) continue;
    if (upper) bytes.push_back(static_cast<std::uint8_t>(*upper << 4 | digit));
    upper = upper ? std::nullopt : std::optional{digit};
  }
  return bytes;
}

/// The metadata chunks seen so far; a later chunk replaces an earlier one of its kind.
struct metadata_chunks {
  std::optional<std::vector<std::uint8_t>> exif;
  std::optional<text_chunk> profile, xmp;

  void add(std::string_view type, std::vector<std::uint8_t> chunk) {
    if (type == "eXIf") {
      exif = std::move(chunk);
      return;
    }
    auto rest = text_of(chunk);
    const auto keyword = take_word(rest);
    auto* const to = keyword == "Raw profile type exif" ? &profile
                     : keyword == "XML:com.adobe.xmp"   ? &xmp
                                                        : nullptr;
    if (to != nullptr) *to = text_chunk{std::string{type}, std::string{rest}};
  }

  std::uint32_t orientation() const {
    std::optional<std::uint32_t> value;
    if (exif)
      value = orientation_in_exif(*exif);
    else if (const auto text = profile ? profile->text() : std::nullopt)
      value = orientation_in_exif(bytes_of_profile(*text));
    if (value) return *value;
    const auto packet = xmp ? xmp->text() : std::nullopt;
    return (packet ? orientation_in_xmp(*packet) : std::nullopt).value_or(1);
  }
};

}  // namespace

std::optional<std::uint32_t> orientation_in_exif(std::span<const std::uint8_t> block) {
  using namespace std::string_view_literals;
  constexpr auto prefix = "Exif\0\0"sv;
  if (text_of(block).starts_with(prefix)) block = block.subspan(prefix.size());
  const bool is_big_endian = text_of(block).starts_with("MM\0*"sv);
  if (!is_big_endian && !text_of(block).starts_with("II*\0"sv)) return std::nullopt;
  const auto number = [&](std::size_t at, std::size_t bytes) -> std::optional<std::uint32_t> {
    if (at > block.size() || bytes > block.size() - at) return std::nullopt;
    std::uint32_t n = 0;
    for (std::size_t i = 0; i < bytes; ++i)
      n = n << 8 | block[is_big_endian ? at + i : at + bytes - 1 - i];
    return n;
  };
  const auto directory = number(4, 4);
  if (!directory) return std::nullopt;
  const auto entries = number(*directory, 2);
  if (!entries) return std::nullopt;
  constexpr std::size_t entry_bytes = 12;
  constexpr std::uint32_t orientation_tag = 0x112;
  for (std::size_t i = 0; i < *entries; ++i) {
    const auto at = std::size_t{*directory} + 2 + entry_bytes * i;
    const auto tag = number(at, 2), type = number(at + 2, 2), count = number(at + 4, 4);
    if (!number(at + 8, 4)) return std::nullopt;  // the file ends within the entry
    if (tag != orientation_tag) continue;
    const auto bytes = integer_bytes(*type);
    return *count == 1 && bytes > 0 ? number(at + 8, bytes) : std::nullopt;
  }
  return std::nullopt;
}

std::optional<std::uint32_t> orientation_in_xmp(std::string_view packet) {
  constexpr std::string_view key = "tiff:Orientation";
  for (auto at = packet.find(key); at != std::string_view::npos; at = packet.find(key, at + 1)) {
    auto rest = packet.substr(at + key.size());
    for (const std::string_view before : {"=\"", ">"}) {
      if (!rest.starts_with(before)) continue;
      rest.remove_prefix(before.size());
      if (!rest.empty() && rest[0] >= '0' && rest[0] <= '9')
        return static_cast<std::uint32_t>(rest[0] - '0');
      break;
    }
  }
  return std::nullopt;
}

compute::image_size upright_size(compute::image_size size, std::uint32_t orientation) {
  if (swaps_sides(orientation)) std::swap(size.height, size.width);
  return size;
}

pixels upright(pixels stored, std::uint32_t orientation) {
  if (orientation < 2 || orientation > 8) return stored;
  const bool swaps = swaps_sides(orientation);
  const bool from_below =
      orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const bool from_right =
      orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  pixels shown{upright_size(stored.size, orientation), {}};
  shown.rgb.reserve(stored.rgb.size());
  for (std::int64_t y = 0; y < shown.size.height; ++y)
    for (std::int64_t x = 0; x < shown.size.width; ++x) {
      const auto down = swaps ? x : y, right = swaps ? y : x;
      const auto row = from_below ? stored.size.height - 1 - down : down;
      const auto column = from_right ? stored.size.width - 1 - right : right;
      const auto* const from = stored.rgb.data() + 3 * (row * stored.size.width + column);
      shown.rgb.insert(shown.rgb.end(), from, from + 3);
    }
  return shown;
}

std::uint32_t orientation_of_png(const input_file& file) {
  constexpr std::uint64_t signature_bytes = 8, frame_bytes = 12;  // length, name, checksum
  metadata_chunks found;
  for (std::uint64_t at = signature_bytes; at + frame_bytes <= file.size();) {
    std::array<std::uint8_t, 8> head{};
    if (!file.read(at, head)) break;
    const auto length = std::uint64_t{head[0]} << 24 | std::uint64_t{head[1]} << 16 |
                        std::uint64_t{head[2]} << 8 | head[3];
    const auto type = text_of(head).substr(4);
    if (type == "IEND" || length > file.size() - at - frame_bytes) break;
    constexpr std::array<std::string_view, 4> kinds{"eXIf", "tEXt", "zTXt", "iTXt"};
    if (length <= metadata_bytes_max && std::ranges::find(kinds, type) != kinds.end()) {
      std::vector<std::uint8_t> chunk(length);
      if (!file.read(at + head.size(), chunk)) break;
      found.add(type, std::move(chunk));
    }
    at += frame_bytes + length;
  }
  return found.orientation();
}

}  // namespace rrfp::data

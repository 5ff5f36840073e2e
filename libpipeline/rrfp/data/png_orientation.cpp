#include <zlib.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "exif.hpp"
#include "image_codecs.hpp"

namespace rrfp::data {

namespace {

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
    if (length <= metadata_bytes_max &&
        std::find(kinds.begin(), kinds.end(), type) != kinds.end()) {
      std::vector<std::uint8_t> chunk(length);
      if (!file.read(at + head.size(), chunk)) break;
      found.add(type, std::move(chunk));
    }
    at += frame_bytes + length;
  }
  return found.orientation();
}

}  // namespace rrfp::data

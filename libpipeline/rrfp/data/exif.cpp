#include "exif.hpp"

#include <array>
#include <utility>

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

}  // namespace rrfp::data

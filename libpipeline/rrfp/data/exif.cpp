#include "exif.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace rrfp::data {

namespace {

/// Reads numbers of a TIFF block in the byte order of the block.
class tiff_reader {
 public:
  tiff_reader(std::span<const std::uint8_t> block, bool is_big_endian)
      : block_(block), is_big_endian_(is_big_endian) {}

  std::optional<std::uint32_t> number(std::size_t at, std::size_t bytes) const {
    if (at > block_.size() || bytes > block_.size() - at) return std::nullopt;
    std::uint32_t n = 0;
    for (std::size_t i = 0; i < bytes; ++i)
      n = n << 8 | block_[is_big_endian_ ? at + i : at + bytes - 1 - i];
    return n;
  }

 private:
  std::span<const std::uint8_t> block_;
  bool is_big_endian_;
};

/// Bytes of an integer by TIFF type; 0 if the type is not an integer.
std::size_t integer_bytes(std::uint32_t type) {
  constexpr std::array<std::size_t, 10> bytes{0, 1, 0, 2, 4, 0, 1, 0, 2, 4};
  return type < bytes.size() ? bytes[type] : 0;
}

bool begins_with(std::span<const std::uint8_t> block, std::string_view text) {
  return block.size() >= text.size() &&
         std::equal(text.begin(), text.end(), block.begin(),
                    [](char a, std::uint8_t b) { return static_cast<std::uint8_t>(a) == b; });
}

constexpr bool swaps_sides(std::uint32_t orientation) {
  return orientation >= 5 && orientation <= 8;
}

}  // namespace

std::optional<std::uint32_t> orientation_in_exif(std::span<const std::uint8_t> block) {
  using namespace std::string_view_literals;
  constexpr auto prefix = "Exif\0\0"sv;
  if (begins_with(block, prefix)) block = block.subspan(prefix.size());
  const bool is_big_endian = begins_with(block, "MM\0*"sv);
  if (!is_big_endian && !begins_with(block, "II*\0"sv)) return std::nullopt;
  const tiff_reader in{block, is_big_endian};
  const auto directory = in.number(4, 4);
  if (!directory) return std::nullopt;
  const auto entries = in.number(*directory, 2);
  if (!entries) return std::nullopt;
  constexpr std::size_t entry_bytes = 12;
  constexpr std::uint32_t orientation_tag = 0x112;
  for (std::size_t i = 0; i < *entries; ++i) {
    const auto at = std::size_t{*directory} + 2 + entry_bytes * i;
    const auto tag = in.number(at, 2), type = in.number(at + 2, 2), count = in.number(at + 4, 4);
    if (!in.number(at + 8, 4)) return std::nullopt;  // the file ends within the entry
    if (tag != orientation_tag) continue;
    const auto bytes = integer_bytes(*type);
    return *count == 1 && bytes > 0 ? in.number(at + 8, bytes) : std::nullopt;
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

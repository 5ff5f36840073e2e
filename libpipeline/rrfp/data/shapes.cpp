#include <rrfp/data/shapes.hpp>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <rrfp/base/check.hpp>
#include <rrfp/compute/keyed_hash.hpp>

namespace rrfp::data {

namespace {

using rgb_value = std::array<std::uint8_t, 3>;

struct named_colour {
  std::string_view name;
  rgb_value value;
};

constexpr std::array<named_colour, 6> colours{{{"red", {214, 39, 40}},
                                               {"green", {44, 160, 44}},
                                               {"blue", {31, 80, 220}},
                                               {"yellow", {235, 205, 30}},
                                               {"purple", {148, 60, 189}},
                                               {"black", {25, 25, 25}}}};
constexpr std::array<std::string_view, 3> kinds{"circle", "square", "triangle"};
constexpr std::array<std::string_view, 4> numbers{"a", "two", "three", "four"};
/// Each shape has its own quarter of the picture, so shapes do not overlap.
constexpr std::uint32_t shapes_max = 4;

/// The sequence of random numbers of one sample.
class sample_numbers {
 public:
  sample_numbers(std::uint64_t seed, std::uint64_t index) : seed_(seed), index_(index) {}

  /// Uniform over [0, n).
  std::uint32_t below(std::uint64_t n) {
    const auto hash = compute::keyed_hash(
        {static_cast<std::uint64_t>(compute::random_use::shapes), seed_, index_, drawn_++});
    return static_cast<std::uint32_t>(((hash >> 32) * n) >> 32);
  }

 private:
  const std::uint64_t seed_;
  const std::uint64_t index_;
  std::uint64_t drawn_ = 0;
};

/// Shapes of one kind and colour.
struct group {
  std::uint32_t kind = 0;
  std::uint32_t colour = 0;
  std::uint32_t count = 0;

  std::pair<std::uint32_t, std::uint32_t> look() const { return {kind, colour}; }
};

struct shape {
  std::uint32_t kind = 0;
  rgb_value fill{};
  // The centre, in half pixels from the upper left corner of the picture.
  std::int64_t x = 0;
  std::int64_t y = 0;
  std::int64_t radius = 0;
};

struct picture {
  compute::image_size size;
  rgb_value background{};
  std::vector<group> groups;
  std::vector<shape> shapes;
};

/// One or two groups with one to four shapes in total, in caption order.
std::vector<group> draw_groups(sample_numbers& random) {
  const auto total = 1 + random.below(shapes_max);
  const auto one = [&](std::uint32_t count) {
    const auto kind = random.below(kinds.size());
    return group{kind, random.below(colours.size()), count};
  };
  if (total == 1 || random.below(2) == 0) return {one(total)};
  const auto first = one(1 + random.below(total - 1));
  auto second = one(total - first.count);
  while (second.look() == first.look()) second = one(second.count);
  std::vector<group> groups{first, second};
  std::ranges::sort(groups, {}, &group::look);
  return groups;
}

std::uint8_t near(std::uint8_t value, sample_numbers& random) {
  return static_cast<std::uint8_t>(
      std::clamp<int>(value - 12 + static_cast<int>(random.below(25)), 0, 255));
}

/// Places each shape in its own quarter of the picture.
void place_shapes(picture& p, sample_numbers& random) {
  std::array<std::int64_t, shapes_max> quarters{0, 1, 2, 3};
  for (std::uint32_t i = shapes_max; i > 1; --i)
    std::swap(quarters[i - 1], quarters[random.below(i)]);
  for (const auto& g : p.groups)
    for (std::uint32_t n = 0; n < g.count; ++n) {
      const auto quarter = quarters[p.shapes.size()];
      const auto wide = p.size.width / 2;
      const auto high = p.size.height / 2;
      // In half pixels: a shape takes at least two thirds of the quarter's shorter side. One pixel
      // to its left and one above stay free, so that shapes do not touch.
      const auto room = std::min(wide, high) - 2;
      const auto radius =
          (2 * room + 2) / 3 + random.below(static_cast<std::uint64_t>(room / 3 + 1));
      shape s{g.kind, colours[g.colour].value, 0, 0, radius};
      for (auto& part : s.fill) part = near(part, random);
      const auto along = [&](std::int64_t side) {
        return radius + 2 + random.below(static_cast<std::uint64_t>(2 * side - 2 * radius - 1));
      };
      s.x = quarter % 2 * 2 * wide + along(wide);
      s.y = quarter / 2 * 2 * high + along(high);
      p.shapes.push_back(s);
    }
}

std::int64_t draw_side(std::uint32_t patch, sample_numbers& random) {
  const auto least = (shapes_side_min + patch - 1) / patch;
  const auto most = std::max(least, shapes_side_max / patch);
  return std::int64_t{patch} * (least + random.below(most - least + 1));
}

std::vector<picture> draw_pictures(std::uint64_t seed, std::uint64_t index, std::uint32_t patch) {
  RRFP_CHECK(patch > 0, "a patch of pixels");
  sample_numbers random{seed, index};
  // Of eight samples one has no picture, five have one and two have two.
  constexpr std::array<std::size_t, 8> counts{0, 1, 1, 1, 1, 1, 2, 2};
  std::vector<picture> pictures(counts[random.below(counts.size())]);
  for (auto& p : pictures) {
    p.size.height = draw_side(patch, random);
    p.size.width = draw_side(patch, random);
    for (auto& part : p.background) part = static_cast<std::uint8_t>(225 + random.below(31));
    p.groups = draw_groups(random);
    place_shapes(p, random);
  }
  return pictures;
}

std::string text_of(const std::vector<picture>& pictures) {
  // The first byte of a text is never predicted. With one byte before each picture, models with and
  // without images predict the same bytes.
  if (pictures.empty()) return "#nothing to see";
  std::string text;
  for (const auto& p : pictures) {
    text += "#<image>";
    const char* separator = "";
    for (const auto& g : p.groups) {
      text += separator;
      text += numbers[g.count - 1];
      text += ' ';
      text += colours[g.colour].name;
      text += ' ';
      text += kinds[g.kind];
      if (g.count > 1) text += 's';
      separator = ", ";
    }
  }
  return text;
}

/// Whether the shape contains a point, given in half pixels from the shape's centre.
bool contains(const shape& s, std::int64_t x, std::int64_t y) {
  if (x < -s.radius || x > s.radius || y < -s.radius || y > s.radius) return false;
  switch (s.kind) {
    case 0: return x * x + y * y <= s.radius * s.radius;
    case 1: return true;
    default: return 2 * std::max(x, -x) <= y + s.radius;  // the tip is up
  }
}

pixels paint(const picture& p) {
  pixels out{p.size, {}};
  out.rgb.reserve(static_cast<std::size_t>(3 * p.size.height * p.size.width));
  for (std::int64_t y = 0; y < p.size.height; ++y)
    for (std::int64_t x = 0; x < p.size.width; ++x) {
      auto here = p.background;
      for (const auto& s : p.shapes)
        if (contains(s, 2 * x + 1 - s.x, 2 * y + 1 - s.y)) here = s.fill;
      out.rgb.insert(out.rgb.end(), here.begin(), here.end());
    }
  return out;
}

}  // namespace

shapes_sample draw_shapes(std::uint64_t seed, std::uint64_t index, std::uint32_t patch,
                          shapes_pixels wanted) {
  const auto pictures = draw_pictures(seed, index, patch);
  shapes_sample sample{text_of(pictures), {}};
  for (const auto& p : pictures)
    sample.images.push_back(wanted == shapes_pixels::painted ? paint(p) : pixels{p.size, {}});
  return sample;
}

}  // namespace rrfp::data

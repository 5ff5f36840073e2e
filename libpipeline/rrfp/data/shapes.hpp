/// A small synthetic task that needs the images: pictures of coloured shapes with captions that
/// count the shapes, such as "a red circle, two blue squares". Kinds, colours and counts are
/// random, so a caption can be predicted only from its picture, not from its own beginning.
///
/// A sample has 0 to 2 pictures. Its text has "#<image>CAPTION" for each picture; without the
/// images (data.blind) the tokens to predict are the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/compute/microbatch_layout.hpp>

namespace rrfp::data {

/// Row by row from the top, each pixel red, green, blue.
struct pixels {
  compute::image_size size;
  std::vector<std::uint8_t> rgb;

  bool operator==(const pixels&) const = default;
};

struct shapes_sample {
  std::string text;
  std::vector<pixels> images;
};

/// Pixels take most of the time; without them, images have a size alone.
enum class shapes_pixels : std::uint8_t { left_out, painted };

/// Range of picture sides in pixels, if the patch allows it.
inline constexpr std::uint32_t shapes_side_min = 16;
inline constexpr std::uint32_t shapes_side_max = 48;

/// Sample `index` of the data set with `seed`. Sides are multiples of `patch`. Gives the same bytes
/// on every machine.
shapes_sample draw_shapes(std::uint64_t seed, std::uint64_t index, std::uint32_t patch,
                          shapes_pixels wanted = shapes_pixels::painted);

/// Creates the folder. Error: the folder exists and is not empty, or cannot be created.
status make_shapes_folder(const std::string& folder);

/// Writes the first `samples` samples in the format of data.images: FOLDER/train.jsonl and PNG
/// files in FOLDER/images. Creates the folder as make_shapes_folder() does. train.jsonl is written
/// last; after an error the folder is empty.
status write_shapes(const std::string& folder, std::uint64_t seed, std::uint32_t samples,
                    std::uint32_t patch);

}  // namespace rrfp::data

/// A small task that takes eyes: pictures of coloured shapes, and captions that count them, such as
/// "a red circle, two blue squares". Kinds, colours and numbers are drawn at random, so the caption
/// cannot be told from its own beginning, only from the picture.
///
/// A text is "#<image>CAPTION" once for each of its pictures, of which there are 0 to 2: with the
/// pictures taken out, the same tokens are left to be predicted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <rrfp/compute/batch_source.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp::data {

/// Row by row from the top, each pixel red, green, blue.
struct pixels {
  compute::image_size size;
  std::vector<std::uint8_t> rgb;

  bool operator==(const pixels&) const = default;
};

/// A sample without its pixels.
struct shapes_outline {
  std::string text;
  std::vector<compute::image_size> images;
};

struct shapes_sample {
  std::string text;
  std::vector<pixels> images;
};

/// The sides of pictures, in pixels, where the patch allows it.
inline constexpr std::uint32_t shapes_side_min = 16;
inline constexpr std::uint32_t shapes_side_max = 48;

/// Sample `index` of the data set of `seed`. The sides are multiples of `patch`. Pure: the same
/// bytes on every machine.
shapes_sample draw_shapes(std::uint64_t seed, std::uint64_t index, std::uint32_t patch);
/// The same but for the pixels, which take most of the time.
shapes_outline outline_shapes(std::uint64_t seed, std::uint64_t index, std::uint32_t patch);

/// Makes the folder; one that is there must be empty.
status make_shapes_folder(const std::string& folder);

/// Writes the first `samples` of them as data.images reads them: FOLDER/train.jsonl and PNG files
/// in FOLDER/images. Makes the folder as above. train.jsonl comes last; what cannot be written
/// leaves the folder empty.
status write_shapes(const std::string& folder, std::uint64_t seed, std::uint32_t samples,
                    std::uint32_t patch);

}  // namespace rrfp::data

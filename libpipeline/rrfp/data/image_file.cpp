#include "image_file.hpp"

#include <utility>

#include "exif.hpp"
#include "image_codecs.hpp"
#include "input_file.hpp"

namespace rrfp::data {

sample_or<pixels> read_image(const std::string& path) {
  const auto file = input_file::open(path);
  if (!file) return bad_sample{bad_reason::missing_image, file.message()};
  const auto header = header_of(**file);
  if (const auto* bad = fault_of(header)) return *bad;
  const auto [stored, orientation] = std::get<image_header>(header);
  std::vector<std::uint8_t> bytes((*file)->size());
  if (auto read = (*file)->read(0, bytes); !read)
    return bad_sample{bad_reason::missing_image, read.message()};
  auto image = format_of(bytes) == image_format::png ? decode_png(bytes, stored)
                                                     : decode_jpeg(bytes, stored);
  if (fault_of(image) != nullptr) return image;
  return upright(std::get<pixels>(std::move(image)), orientation);
}

}  // namespace rrfp::data

#include "image_file.hpp"

#include <new>

#include "image_codecs.hpp"
#include "input_file.hpp"

namespace rrfp::data {

sample_or<pixels> read_image(const std::string& path) {
  const auto file = input_file::open(path);
  if (!file) return bad_sample{bad_reason::missing_image, file.message()};
  const auto size = size_of(**file);
  if (const auto* bad = fault_of(size)) return *bad;
  const auto expected = std::get<compute::image_size>(size);
  std::vector<std::uint8_t> bytes((*file)->size());
  if (auto read = (*file)->read(0, bytes); !read)
    return bad_sample{bad_reason::missing_image, read.message()};
  return format_of(bytes) == image_format::png ? decode_png(bytes, expected)
                                               : decode_jpeg(bytes, expected);
}

}  // namespace rrfp::data

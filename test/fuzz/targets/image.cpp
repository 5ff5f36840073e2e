/// Images: the size in the header, and the pixels of small ones.
#include <rrfp/data/image_file.hpp>

#include "promises.hpp"

using namespace rrfp;
using fuzz::promise;

namespace {

/// Larger images take too long; their headers are read all the same.
constexpr std::int64_t decoded_pixels_max = 64 * 64;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::memory_file made;
  made.write(fuzz::text_of(data, size));
  const auto read = data::read_image_size(made.path());
  if (const auto* bad = data::fault_of(read)) {
    fuzz::promise_line(bad->message);
    return 0;
  }
  const auto& shown = std::get<compute::image_size>(read);
  promise(shown.height > 0 && shown.width > 0 &&
              shown.height * shown.width <= static_cast<std::int64_t>(data::image_pixels_max),
          "an image has a limited size");
  if (shown.height * shown.width > decoded_pixels_max) return 0;
  const auto image = data::read_image(made.path());
  if (const auto* bad = data::fault_of(image)) {
    fuzz::promise_line(bad->message);
    return 0;
  }
  const auto& pixels = std::get<data::pixels>(image);
  promise(pixels.size == shown, "an image is as large as its header says");
  const auto png = data::encode_png(pixels);
  promise(png.ok(), "an image can be written");
  const fuzz::memory_file written{fuzz::text_of(png->data(), png->size())};
  const auto again = data::read_image(written.path());
  promise(std::holds_alternative<data::pixels>(again) && std::get<data::pixels>(again) == pixels,
          "an image is read as it was written");
  return 0;
}

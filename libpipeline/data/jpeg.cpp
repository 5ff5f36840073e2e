#include <turbojpeg.h>

#include <memory>

#include "image_codecs.hpp"

namespace rrfp::data {

namespace {

struct destroy {
  void operator()(void* handle) const { tjDestroy(handle); }
};

bad_sample fault(tjhandle handle) {
  return {bad_reason::corrupt_image,
          std::string{"the JPEG does not decode: "} + tjGetErrorStr2(handle)};
}

}  // namespace

sample_or<pixels> decode_jpeg(std::span<const std::uint8_t> bytes, compute::image_size size) {
  const std::unique_ptr<void, destroy> handle{tjInitDecompress()};
  if (!handle) return fault(nullptr);
  int width = 0, height = 0, subsampling = 0, colours = 0;
  if (tjDecompressHeader3(handle.get(), bytes.data(), bytes.size(), &width, &height, &subsampling,
                          &colours) != 0)
    return fault(handle.get());
  if (height != size.height || width != size.width)
    return bad_sample{bad_reason::corrupt_image, "the JPEG has two sizes"};
  if (colours == TJCS_CMYK || colours == TJCS_YCCK)
    return bad_sample{bad_reason::corrupt_image, "expected a JPEG in colour or grey, got CMYK"};
  pixels out{size,
             std::vector<std::uint8_t>(static_cast<std::size_t>(3 * size.height * size.width))};
  // A warning is an error: most of all it says that the file ends early, the rest of the image
  // being grey. Scans are limited because a small file may ask for any number of passes over its
  // pixels.
  constexpr int flags = TJFLAG_ACCURATEDCT | TJFLAG_STOPONWARNING | TJFLAG_LIMITSCANS;
  if (tjDecompress2(handle.get(), bytes.data(), bytes.size(), out.rgb.data(), width, 0, height,
                    TJPF_RGB, flags) != 0)
    return fault(handle.get());
  return out;
}

}  // namespace rrfp::data

#include <turbojpeg.h>

#include <memory>

#include "image_file.hpp"

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
    return bad_sample{bad_reason::corrupt_image, "the JPEG declares two different sizes"};
  if (colours == TJCS_CMYK || colours == TJCS_YCCK)
    return bad_sample{bad_reason::corrupt_image, "expected a JPEG in colour or grey, got CMYK"};
  pixels out{size,
             std::vector<std::uint8_t>(static_cast<std::size_t>(3 * size.height * size.width))};
  // Treat warnings as errors: the usual one is a truncated file, which decodes with grey pixels at
  // the end. Limit the scans, because a small file may demand any number of passes over its pixels.
  constexpr int flags = TJFLAG_ACCURATEDCT | TJFLAG_STOPONWARNING | TJFLAG_LIMITSCANS;
  if (tjDecompress2(handle.get(), bytes.data(), bytes.size(), out.rgb.data(), width, 0, height,
                    TJPF_RGB, flags) != 0)
    return fault(handle.get());
  return out;
}

}  // namespace rrfp::data

#include "image_tensor.hpp"

#include <algorithm>

#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/empty.h>

#include <rrfp/base/check.hpp>

namespace rrfp::data {

result<image_scaler> image_scaler::make(const source_config& config) {
  const auto& d = config.data;
  if (d.image_side_max < config.patch)
    return error{"data.image_side_max: expected at least the model's patch of " +
                 std::to_string(config.patch) + " pixels, got " + std::to_string(d.image_side_max)};
  RRFP_CHECK(config.patch > 0 && !d.image_mean.empty() && !d.image_std.empty(),
             "data options that the job validation accepted");
  image_scaler scaler{config.patch, d.image_side_max};
  for (std::size_t c = 0; c < 3; ++c) {
    const auto mean = d.image_mean[c % d.image_mean.size()];
    const auto deviation = d.image_std[c % d.image_std.size()];
    for (std::size_t v = 0; v < 256; ++v)
      scaler.values_[c][v] = static_cast<float>((static_cast<double>(v) / 255 - mean) / deviation);
  }
  return scaler;
}

compute::image_size image_scaler::fitted(compute::image_size size) const {
  const auto longest = std::max(size.height, size.width);
  const auto patches_max = side_max_ / patch_;
  const auto side = [&](std::int64_t length) {
    // Integer arithmetic, so that all machines round the same way: length * to / from patches.
    const auto to = longest > side_max_ ? side_max_ : 1;
    const auto from = patch_ * (longest > side_max_ ? longest : 1);
    return std::clamp<std::int64_t>((2 * length * to + from) / (2 * from), 1, patches_max) * patch_;
  };
  return {side(size.height), side(size.width)};
}

std::uint64_t image_scaler::patches(compute::image_size fitted) const {
  return static_cast<std::uint64_t>((fitted.height / patch_) * (fitted.width / patch_));
}

at::Tensor image_scaler::scale(const pixels& image) const {
  const auto [height, width] = image.size;
  const auto plane = static_cast<std::size_t>(height * width);
  RRFP_CHECK(image.rgb.size() == 3 * plane, "three colours a pixel");
  auto made = at::empty({3, height, width}, at::kFloat);
  auto* to = made.mutable_data_ptr<float>();
  for (std::size_t i = 0; i < plane; ++i)
    for (std::size_t c = 0; c < 3; ++c) to[c * plane + i] = values_[c][image.rgb[3 * i + c]];
  const auto target = fitted(image.size);
  if (target == image.size) return made;
  return at::_upsample_bilinear2d_aa(made.unsqueeze(0), {target.height, target.width}, false)
      .squeeze(0);
}

}  // namespace rrfp::data

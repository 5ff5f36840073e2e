#include "vision.hpp"

#include <cmath>

#include <rrfp/job/model_rules.hpp>

#include "../deferred.hpp"

namespace rrfp::compute {

namespace {

const std::string tower = "vision_tower.";

linear_traits into_residual(const job::vision_options& v) {
  return {.deviation = initial_deviation / std::sqrt(2.0 * v.layers)};
}

}  // namespace

std::vector<std::int64_t> encoder_rows(std::span<const image_size> images,
                                       const job::vision_options& v) {
  const std::int64_t patch = v.patch;
  std::vector<std::int64_t> rows;
  rows.reserve(images.size());
  for (const auto& i : images)
    rows.push_back((i.height / patch) * (i.width / patch) + (v.class_token ? 1 : 0));
  return rows;
}

patch_embedding::patch_embedding(parameter_maker& make, const job::vision_options& v,
                                 at::ScalarType type)
    : type_(type),
      patch_(v.patch),
      grid_(v.image_size / v.patch),
      class_token_(v.class_token ? make.normal(tower + "embeddings.cls_token", {1, 1, v.hidden},
                                               initial_deviation)
                                 : at::Tensor()),
      positions_(make.normal(tower + "embeddings.position_embeddings",
                             {1, grid_ * grid_ + (v.class_token ? 1 : 0), v.hidden},
                             initial_deviation)),
      // A convolution whose stride is its width is a product with the flattened patches.
      projection_(make, tower + "embeddings.patch_embeddings.projection", 3 * patch_ * patch_,
                  v.hidden, divided::none, {.stored = {.sizes = {v.hidden, 3, patch_, patch_}}}) {}

at::Tensor patch_embedding::operator()(std::span<const at::Tensor> images,
                                       const layer_context& c) const {
  std::vector<at::Tensor> patches;
  patches.reserve(images.size());
  for (const auto& image : images) {
    TORCH_CHECK(image.dim() == 3 && image.size(0) == 3 && image.size(1) % patch_ == 0 &&
                    image.size(2) % patch_ == 0 && image.numel() > 0,
                "an image of sizes ", image.sizes(), ", expected [3, height, width] in multiples ",
                "of vision.patch = ", patch_);
    const auto rows = image.size(1) / patch_, columns = image.size(2) / patch_;
    patches.push_back(image.to(type_)
                          .view({3, rows, patch_, columns, patch_})
                          .permute({1, 3, 0, 2, 4})
                          .reshape({rows * columns, 3 * patch_ * patch_}));
  }
  const auto embedded = projection_(at::cat(patches), c);
  std::vector<at::Tensor> rows;
  std::int64_t first = 0;
  for (const auto& image : images) {
    const auto height = image.size(1) / patch_, width = image.size(2) / patch_;
    const auto of_image = embedded.narrow(0, first, height * width);
    first += height * width;
    const auto positions = cast_like(positions_for(height, width), of_image);
    rows.push_back(class_token_.defined()
                       ? at::cat({cast_like(class_token_.view({1, -1}), of_image), of_image}) +
                             positions
                       : of_image + positions);
  }
  return at::cat(rows);
}

/// [rows * columns + class, hidden]
at::Tensor patch_embedding::positions_for(std::int64_t rows, std::int64_t columns) const {
  const auto all = positions_.squeeze(0);
  if (rows == grid_ && columns == grid_) return all;
  const std::int64_t of_class = class_token_.defined() ? 1 : 0;
  const auto hidden = all.size(1);
  const auto grid =
      all.narrow(0, of_class, grid_ * grid_).view({1, grid_, grid_, hidden}).permute({0, 3, 1, 2});
  // On the host, because the backward on a device sums in no fixed order.
  const auto fitted = at::upsample_bicubic2d(grid.cpu(), {rows, columns}, /*align_corners=*/false)
                          .to(all.device())
                          .permute({0, 2, 3, 1})
                          .reshape({rows * columns, hidden});
  return of_class == 0 ? fitted : at::cat({all.narrow(0, 0, 1), fitted});
}

encoder_layer::encoder_layer(parameter_maker& make, std::uint32_t number,
                             const job::vision_options& v)
    : encoder_layer(make, tower + "encoder.layer." + std::to_string(number) + ".", v) {}

encoder_layer::encoder_layer(parameter_maker& make, const std::string& prefix,
                             const job::vision_options& v)
    : head_width_(v.hidden / v.heads),
      activation_(v.activation),
      before_(make, prefix + "layernorm_before", v.hidden, norm_kind::layer, v.norm_epsilon),
      query_(make, prefix + "attention.attention.query", v.hidden, v.hidden, divided::outputs),
      key_(make, prefix + "attention.attention.key", v.hidden, v.hidden, divided::outputs),
      value_(make, prefix + "attention.attention.value", v.hidden, v.hidden, divided::outputs),
      out_(make, prefix + "attention.output.dense", v.hidden, v.hidden, divided::inputs,
           into_residual(v)),
      after_(make, prefix + "layernorm_after", v.hidden, norm_kind::layer, v.norm_epsilon),
      up_(make, prefix + "intermediate.dense", v.hidden, job::feed_forward_of(v), divided::outputs),
      down_(make, prefix + "output.dense", job::feed_forward_of(v), v.hidden, divided::inputs,
            into_residual(v)) {}

at::Tensor encoder_layer::operator()(at::Tensor x, const layer_context& c) const {
  const auto by_head = [&](const at::Tensor& t) { return t.view({t.size(0), -1, head_width_}); };
  const auto normed = copy_to_group(before_(x), c.group);
  x = out_(c.rows.attend(by_head(query_(normed, c)), by_head(key_(normed, c)),
                         by_head(value_(normed, c)), /*causal=*/false),
           c) +
      x;
  return down_(activate(activation_, up_(copy_to_group(after_(x), c.group), c)), c) + x;
}

projector::projector(parameter_maker& make, const job::model_options& m)
    : has_class_(m.vision.class_token),
      first_(make, "multi_modal_projector.linear_1", m.vision.hidden, m.hidden, divided::outputs),
      second_(make, "multi_modal_projector.linear_2", m.hidden, m.hidden, divided::inputs) {}

at::Tensor projector::operator()(const at::Tensor& x, const layer_context& c) const {
  // The first row of each image is its class token.
  const auto patches =
      has_class_ ? x.index_select(0, c.rows.positions().ne(0).nonzero().flatten()) : x;
  return second_(at::gelu(first_(copy_to_group(patches, c.group), c)), c);
}

}  // namespace rrfp::compute

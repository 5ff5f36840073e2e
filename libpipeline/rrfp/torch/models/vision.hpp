/// A vision transformer (Dosovitskiy et al., 2020) in front of the decoder, and the projector
/// between them (Liu et al., LLaVA, 2023). Images may have any size that is a multiple of the
/// patch; learned positions are interpolated. Parameters have the names of Hugging Face's LLaVA
/// with a ViT.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <rrfp/job/options.hpp>
#include <rrfp/torch/batch_source.hpp>

#include "layers.hpp"

namespace rrfp::compute {

/// Rows of the encoder for each image: its patches, and the class token if there is one.
std::vector<std::int64_t> encoder_rows(std::span<const image_size> images,
                                       const job::vision_options& v);

/// Embeds images as rows [patches + class, hidden], concatenated. Replicated on every rank.
class patch_embedding {
 public:
  /// `type`: the compute type.
  patch_embedding(parameter_maker& make, const job::vision_options& v, at::ScalarType type);
  /// Error: an image without 3 channels, or with sides that are not multiples of the patch.
  at::Tensor operator()(std::span<const at::Tensor> images, const layer_context& c) const;

 private:
  at::Tensor positions_for(std::int64_t rows, std::int64_t columns) const;

  at::ScalarType type_;
  std::int64_t patch_, grid_;
  at::Tensor class_token_;  // [1, 1, hidden], undefined without one
  at::Tensor positions_;    // [1, grid * grid + class, hidden]
  linear_layer projection_;
};

class encoder_layer {
 public:
  encoder_layer(parameter_maker& make, std::uint32_t number, const job::vision_options& v);
  at::Tensor operator()(at::Tensor x, const layer_context& c) const;

 private:
  encoder_layer(parameter_maker& make, const std::string& prefix, const job::vision_options& v);

  std::int64_t head_width_;
  job::activation_kind activation_;
  norm_layer before_;
  linear_layer query_, key_, value_, out_;
  norm_layer after_;
  linear_layer up_, down_;
};

/// Projects encoder rows to decoder rows: [patches + class, hidden of the encoder] -> [patches,
/// hidden of the decoder].
class projector {
 public:
  projector(parameter_maker& make, const job::model_options& m);
  at::Tensor operator()(const at::Tensor& x, const layer_context& c) const;

 private:
  bool has_class_;
  linear_layer first_, second_;
};

}  // namespace rrfp::compute

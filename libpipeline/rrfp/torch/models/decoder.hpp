/// The parts of the decoder: GPT-2 (Radford et al., 2019), LLaMA 3 (Llama Team, 2024) and Qwen3
/// (Qwen Team, 2025), selected by job::model_options. Parameters have the names of Hugging Face.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <ATen/ATen.h>

#include <rrfp/job/options.hpp>

#include "layers.hpp"

namespace rrfp::compute {

/// Parameter names of a family.
struct decoder_names {
  std::string tokens, positions, layer, norm, head;  // `layer`: prefix of the number
  std::string attention_norm, fused_qkv, query, key, value, attention_out, query_norm, key_norm;
  std::string feed_forward_norm, gate, up, down;

  static decoder_names of(const job::model_options& m);
};

/// Dropout of a residual branch, keyed by its layer and site.
enum class dropout_site : std::uint32_t { embedding, attention, feed_forward };
using residual_dropout =
    std::function<at::Tensor(const at::Tensor& x, std::uint32_t layer, dropout_site site)>;

norm_kind norm_kind_of(const job::model_options& m);

/// Rotary positions; nullopt if positions are learned.
std::optional<rotary_positions> make_rotary(const job::model_options& m);

/// Causal attention; each rank computes some of the heads.
class decoder_attention {
 public:
  decoder_attention(parameter_maker& make, const decoder_names& names, const std::string& prefix,
                    const job::model_options& m);
  at::Tensor operator()(const at::Tensor& x, const layer_context& c) const;

 private:
  std::int64_t head_width_;
  std::optional<linear_layer> fused_;
  std::optional<linear_layer> query_, key_, value_;
  std::optional<norm_layer> query_norm_, key_norm_;
  std::optional<linear_layer> out_;
};

class decoder_feed_forward {
 public:
  decoder_feed_forward(parameter_maker& make, const decoder_names& names, const std::string& prefix,
                       const job::model_options& m);
  at::Tensor operator()(const at::Tensor& x, const layer_context& c) const;

 private:
  job::activation_kind activation_;
  std::optional<linear_layer> gate_;
  linear_layer up_, down_;
};

class decoder_layer {
 public:
  decoder_layer(parameter_maker& make, const decoder_names& names, std::uint32_t number,
                const job::model_options& m)
      : decoder_layer(make, names, names.layer + std::to_string(number) + ".", number, m) {}
  at::Tensor operator()(at::Tensor x, const layer_context& c, const residual_dropout& drop) const;

 private:
  decoder_layer(parameter_maker& make, const decoder_names& names, const std::string& prefix,
                std::uint32_t number, const job::model_options& m);

  std::uint32_t number_;
  norm_layer attention_norm_;
  decoder_attention attention_;
  norm_layer feed_forward_norm_;
  decoder_feed_forward feed_forward_;
};

}  // namespace rrfp::compute

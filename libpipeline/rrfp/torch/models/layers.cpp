#include "layers.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "../deferred.hpp"

namespace rrfp::compute {

linear_layer::linear_layer(parameter_maker& make, const std::string& name, std::int64_t in,
                           std::int64_t out, divided by, const linear_traits& traits)
    : is_sum_(by == divided::inputs) {
  std::optional<cut> of_weight, of_bias;
  if (by == divided::outputs) of_weight = of_bias = cut{0, traits.blocks};
  if (by == divided::inputs) of_weight = cut{1};
  weight_ = make.normal(name + ".weight", {out, in}, traits.deviation,
                        {.partition = of_weight, .stored = traits.stored});
  if (traits.has_bias) bias_ = make.zeros(name + ".bias", {out}, {.partition = of_bias});
}

at::Tensor linear_layer::operator()(const at::Tensor& x, const layer_context& c) const {
  return is_sum_ ? row_parallel_linear(x, weight_, bias_, c.stash, c.group)
                 : linear(x, weight_, bias_, c.stash);
}

norm_layer::norm_layer(parameter_maker& make, const std::string& name, std::int64_t width,
                       norm_kind kind, double e)
    : weight(make.ones(name + ".weight", {width})), epsilon(e) {
  if (kind == norm_kind::layer) bias = make.zeros(name + ".bias", {width});
}

at::Tensor norm_layer::operator()(const at::Tensor& x) const {
  if (bias.defined()) {
    return at::layer_norm(x, {weight.size(0)}, cast_like(weight, x), cast_like(bias, x), epsilon);
  }
  return at::rms_norm(x, {weight.size(0)}, cast_like(weight, x), epsilon);
}

at::Tensor activate(job::activation_kind kind, const at::Tensor& x) {
  switch (kind) {
    case job::activation_kind::gelu: return at::gelu(x);
    case job::activation_kind::gelu_tanh: return at::gelu(x, "tanh");
    case job::activation_kind::silu: return at::silu(x);
    case job::activation_kind::relu: return at::relu(x);
  }
  return x;
}

rotary_positions::rotary_positions(const job::model_options& m, std::int64_t width)
    : frequencies_(at::empty({width / 2})) {
  auto* frequency = frequencies_.mutable_data_ptr<float>();
  const auto& scaling = m.rope_scaling;
  for (std::int64_t i = 0; i < width / 2; ++i) {
    auto f = 1.0 / std::pow(m.rope_theta, static_cast<double>(2 * i) / static_cast<double>(width));
    if (scaling.factor != 1) {
      // Keep waves that are short relative to the original context, stretch long ones, and
      // interpolate between (Llama Team, The Llama 3 Herd of Models, 2024).
      const auto turns = scaling.original_context * f / (2 * std::numbers::pi);
      const auto share = (turns - scaling.low_frequency_factor) /
                         (scaling.high_frequency_factor - scaling.low_frequency_factor);
      const auto kept = std::clamp(share, 0.0, 1.0);
      f = (1 - kept) * f / scaling.factor + kept * f;
    }
    frequency[i] = static_cast<float>(f);
  }
}

std::pair<at::Tensor, at::Tensor> rotary_positions::at_positions(
    const at::Tensor& positions) const {
  // Keep the copy: a copy in every forward would wait for the stream.
  if (frequencies_.device() != positions.device())
    frequencies_ = frequencies_.to(positions.device());
  const auto angles = at::outer(positions.to(at::kFloat), frequencies_);
  const auto both = at::cat({angles, angles}, -1).unsqueeze(1);
  return {both.cos(), both.sin()};
}

at::Tensor rotate(const at::Tensor& x, const layer_context& c) {
  const auto halves = x.chunk(2, -1);
  const auto turned = at::cat({halves[1].neg(), halves[0]}, -1);
  return x * cast_like(c.cosines, x) + turned * cast_like(c.sines, x);
}

}  // namespace rrfp::compute

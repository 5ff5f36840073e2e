#include "decoder.hpp"

#include <cmath>

#include <rrfp/job/model_rules.hpp>

namespace rrfp::compute {

namespace {

using job::architecture;

linear_traits out_of_residual(const job::model_options& m, bool has_bias) {
  return {.has_bias = has_bias, .stored = {.transposed = m.family == architecture::gpt2}};
}

/// Projections into the residual stream have the scaled initial deviation of GPT-2.
linear_traits into_residual(const job::model_options& m, bool has_bias) {
  auto traits = out_of_residual(m, has_bias);
  traits.deviation /= std::sqrt(2.0 * m.layers);
  return traits;
}

bool is_gated(const job::model_options& m) { return m.family != architecture::gpt2; }

}  // namespace

decoder_names decoder_names::of(const job::model_options& m) {
  decoder_names n;
  if (m.family == architecture::gpt2) {
    n.tokens = "transformer.wte.weight";
    n.positions = "transformer.wpe.weight";
    n.layer = "transformer.h.";
    n.norm = "transformer.ln_f";
    n.attention_norm = "ln_1";
    n.fused_qkv = "attn.c_attn";
    n.attention_out = "attn.c_proj";
    n.feed_forward_norm = "ln_2";
    n.up = "mlp.c_fc";
    n.down = "mlp.c_proj";
  } else {
    n.tokens = "model.embed_tokens.weight";
    n.layer = "model.layers.";
    n.norm = "model.norm";
    n.attention_norm = "input_layernorm";
    n.query = "self_attn.q_proj";
    n.key = "self_attn.k_proj";
    n.value = "self_attn.v_proj";
    n.attention_out = "self_attn.o_proj";
    n.query_norm = "self_attn.q_norm";
    n.key_norm = "self_attn.k_norm";
    n.feed_forward_norm = "post_attention_layernorm";
    n.gate = "mlp.gate_proj";
    n.up = "mlp.up_proj";
    n.down = "mlp.down_proj";
  }
  n.head = "lm_head.weight";
  if (m.vision.layers > 0) {
    for (auto* name : {&n.tokens, &n.positions, &n.layer, &n.norm, &n.head})
      if (!name->empty()) *name = "language_model." + *name;
  }
  return n;
}

norm_kind norm_kind_of(const job::model_options& m) {
  return m.family == architecture::gpt2 ? norm_kind::layer : norm_kind::rms;
}

std::optional<rotary_positions> make_rotary(const job::model_options& m) {
  if (m.family == architecture::gpt2) return std::nullopt;
  return rotary_positions(m, job::head_width_of(m));
}

decoder_attention::decoder_attention(parameter_maker& make, const decoder_names& names,
                                     const std::string& prefix, const job::model_options& m)
    : head_width_(job::head_width_of(m)) {
  const std::int64_t hidden = m.hidden;
  const auto width = head_width_ * m.heads, kv_width = head_width_ * job::kv_heads_of(m);
  if (m.family == architecture::gpt2) {
    auto traits = out_of_residual(m, true);
    traits.blocks = 3;
    fused_.emplace(make, prefix + names.fused_qkv, hidden, 3 * width, divided::outputs, traits);
    out_.emplace(make, prefix + names.attention_out, width, hidden, divided::inputs,
                 into_residual(m, true));
    return;
  }
  const auto traits = out_of_residual(m, m.attention_bias);
  query_.emplace(make, prefix + names.query, hidden, width, divided::outputs, traits);
  key_.emplace(make, prefix + names.key, hidden, kv_width, divided::outputs, traits);
  value_.emplace(make, prefix + names.value, hidden, kv_width, divided::outputs, traits);
  if (m.family == architecture::qwen3) {
    const auto norm_of = [&](const std::string& name) {
      return norm_layer(make, prefix + name, head_width_, norm_kind::rms, m.norm_epsilon);
    };
    query_norm_ = norm_of(names.query_norm);
    key_norm_ = norm_of(names.key_norm);
  }
  out_.emplace(make, prefix + names.attention_out, width, hidden, divided::inputs,
               into_residual(m, m.attention_bias));
}

at::Tensor decoder_attention::operator()(const at::Tensor& x, const layer_context& c) const {
  const auto shared = copy_to_group(x, c.group);
  const auto by_head = [&](const at::Tensor& t) { return t.view({t.size(0), -1, head_width_}); };
  at::Tensor q, k, v;
  if (fused_) {
    // q, k and v of this rank's heads: a third of its columns each.
    const auto parts = (*fused_)(shared, c).chunk(3, -1);
    q = by_head(parts[0]), k = by_head(parts[1]), v = by_head(parts[2]);
  } else {
    q = by_head((*query_)(shared, c));
    k = by_head((*key_)(shared, c));
    v = by_head((*value_)(shared, c));
  }
  if (query_norm_) {
    // Each rank normalises its own heads with replicated weights, so their gradient is a sum over
    // ranks.
    const auto normalised = [&](norm_layer norm, const at::Tensor& t) {
      norm.weight = copy_to_group(norm.weight, c.group);
      return norm(t);
    };
    q = normalised(*query_norm_, q);
    k = normalised(*key_norm_, k);
  }
  if (c.cosines.defined()) {
    q = rotate(q, c);
    k = rotate(k, c);
  }
  return (*out_)(c.rows.attend(q, k, v, /*causal=*/true), c);
}

decoder_feed_forward::decoder_feed_forward(parameter_maker& make, const decoder_names& names,
                                           const std::string& prefix, const job::model_options& m)
    : activation_(job::activation_of(m)),
      gate_(is_gated(m) ? std::make_optional<linear_layer>(
                              make, prefix + names.gate, m.hidden, job::feed_forward_of(m),
                              divided::outputs, out_of_residual(m, m.mlp_bias))
                        : std::nullopt),
      up_(make, prefix + names.up, m.hidden, job::feed_forward_of(m), divided::outputs,
          out_of_residual(m, !is_gated(m) || m.mlp_bias)),
      down_(make, prefix + names.down, job::feed_forward_of(m), m.hidden, divided::inputs,
            into_residual(m, !is_gated(m) || m.mlp_bias)) {}

at::Tensor decoder_feed_forward::operator()(const at::Tensor& x, const layer_context& c) const {
  const auto shared = copy_to_group(x, c.group);
  if (!gate_) return down_(activate(activation_, up_(shared, c)), c);
  return down_(activate(activation_, (*gate_)(shared, c)) * up_(shared, c), c);
}

decoder_layer::decoder_layer(parameter_maker& make, const decoder_names& names,
                             const std::string& prefix, std::uint32_t number,
                             const job::model_options& m)
    : number_(number),
      attention_norm_(make, prefix + names.attention_norm, m.hidden, norm_kind_of(m),
                      m.norm_epsilon),
      attention_(make, names, prefix, m),
      feed_forward_norm_(make, prefix + names.feed_forward_norm, m.hidden, norm_kind_of(m),
                         m.norm_epsilon),
      feed_forward_(make, names, prefix, m) {}

at::Tensor decoder_layer::operator()(at::Tensor x, const layer_context& c,
                                     const residual_dropout& drop) const {
  x = x + drop(attention_(attention_norm_(x), c), number_, dropout_site::attention);
  return x + drop(feed_forward_(feed_forward_norm_(x), c), number_, dropout_site::feed_forward);
}

}  // namespace rrfp::compute

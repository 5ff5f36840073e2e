#include <rrfp/hugging_face/config.hpp>

#include <cstdint>
#include <optional>
#include <utility>

#include <rrfp/job/model_rules.hpp>

#include "activations.hpp"
#include "json_file.hpp"

namespace rrfp::hugging_face {

namespace {

using json = nlohmann::ordered_json;
using job::activation_kind;
using job::architecture;
using job::model_options;
using job::vision_options;

void read_activation(const section& s, const char* key, activation_kind& to) {
  const auto name = s.text(key);
  if (name.empty()) return;
  std::string known;
  for (const auto& [word, kind] : activations) {
    if (name == word) {
      to = kind;
      return;
    }
    known += (known.empty() ? "" : ", ") + std::string(word);
  }
  s.fail(key, "one of " + known, name);
}

void read_gpt2(const section& s, model_options& m) {
  m.family = architecture::gpt2;
  m.tied_head = true;
  m.vocabulary = 50257, m.context = 1024, m.hidden = 768, m.layers = 12, m.heads = 12;
  s.integer("vocab_size", m.vocabulary);
  s.integer("n_positions", m.context);
  s.integer("n_embd", m.hidden);
  s.integer("n_layer", m.layers);
  s.integer("n_head", m.heads);
  s.integer("n_inner", m.feed_forward);
  s.number("layer_norm_epsilon", m.norm_epsilon);
  s.boolean("tie_word_embeddings", m.tied_head);
  read_activation(s, "activation_function", m.activation.emplace(activation_kind::gelu_tanh));
  s.require("scale_attn_weights", true);
  s.require("scale_attn_by_inverse_layer_idx", false);
  s.require("add_cross_attention", false);
}

/// transformers 5 writes rope_parameters; earlier versions write rope_theta and rope_scaling.
void read_rope(const section& s, model_options& m) {
  s.number("rope_theta", m.rope_theta);
  s.require("partial_rotary_factor", 1.0);
  const auto rope = s.part(s.has("rope_scaling") ? "rope_scaling" : "rope_parameters");
  if (!rope) return;
  rope->number("rope_theta", m.rope_theta);
  rope->require("partial_rotary_factor", 1.0);
  const auto type = rope->has("rope_type") ? rope->text("rope_type") : rope->text("type");
  if (type.empty() || type == "default") return;
  if (type != "llama3") return rope->fail("rope_type", "\"default\" or \"llama3\"", type);
  auto& scaling = m.rope_scaling;
  rope->needed_number("factor", scaling.factor);
  rope->needed_number("low_freq_factor", scaling.low_frequency_factor);
  rope->needed_number("high_freq_factor", scaling.high_frequency_factor);
  scaling.original_context = m.context;
  rope->number("original_max_position_embeddings", scaling.original_context);
  if (scaling.factor < 1) rope->fail("factor", "a number >= 1", scaling.factor);
  if (!(scaling.low_frequency_factor < scaling.high_frequency_factor))
    rope->fail("high_freq_factor", "more than low_freq_factor", scaling.high_frequency_factor);
}

void read_llama(const section& s, model_options& m, architecture family) {
  m.family = family;
  m.norm_epsilon = 1e-6;
  s.needed_integer("vocab_size", m.vocabulary);
  s.needed_integer("max_position_embeddings", m.context);
  s.needed_integer("hidden_size", m.hidden);
  s.needed_integer("intermediate_size", m.feed_forward);
  s.needed_integer("num_hidden_layers", m.layers);
  s.needed_integer("num_attention_heads", m.heads);
  s.integer("num_key_value_heads", m.kv_heads);
  // Qwen3's heads are 128 wide unless the file says otherwise.
  if (family == architecture::qwen3) m.head_width = 128;
  s.integer("head_dim", m.head_width);
  s.number("rms_norm_eps", m.norm_epsilon);
  s.boolean("tie_word_embeddings", m.tied_head);
  s.boolean("attention_bias", m.attention_bias);
  if (family == architecture::llama) s.boolean("mlp_bias", m.mlp_bias);
  read_activation(s, "hidden_act", m.activation.emplace(activation_kind::silu));
  read_rope(s, m);
  s.require("pretraining_tp", 1);
  s.require("use_sliding_window", false);
  if (s.has("layer_types"))
    for (const auto& type : s.at("layer_types"))
      if (type != "full_attention") s.fail("layer_types", "\"full_attention\" alone", type);
}

void read_vit(const section& s, vision_options& v) {
  v = {};
  v.layers = 12, v.hidden = 768, v.heads = 12, v.feed_forward = 3072;
  s.require("model_type", "vit");
  s.integer("num_hidden_layers", v.layers);
  s.integer("hidden_size", v.hidden);
  s.integer("num_attention_heads", v.heads);
  s.integer("intermediate_size", v.feed_forward);
  s.integer("patch_size", v.patch);
  s.integer("image_size", v.image_size);
  s.number("layer_norm_eps", v.norm_epsilon);
  read_activation(s, "hidden_act", v.activation);
  s.require("num_channels", 3);
  s.require("qkv_bias", true);
}

void read_text(const section& s, model_options& m) {
  const auto type = s.text("model_type");
  if (type == "gpt2") return read_gpt2(s, m);
  if (type == "llama") return read_llama(s, m, architecture::llama);
  if (type == "qwen3") return read_llama(s, m, architecture::qwen3);
  s.fail("model_type", "\"gpt2\", \"llama\" or \"qwen3\"", type);
}

void read_llava(const section& s, model_options& m) {
  const auto text = s.part("text_config"), vision = s.part("vision_config");
  if (!text) return s.fail("text_config", "an object", nullptr);
  if (!vision) return s.fail("vision_config", "an object", nullptr);
  read_text(*text, m);
  if (m.family == architecture::gpt2)
    return text->fail("model_type", "\"llama\" or \"qwen3\" in a llava model", "gpt2");
  read_vit(*vision, m.vision);
  s.boolean("tie_word_embeddings", m.tied_head);
  m.vision.image_token = 32000;
  s.integer("image_token_id", m.vision.image_token);
  s.integer("image_token_index", m.vision.image_token);
  s.require("projector_hidden_act", "gelu");
  s.require("multimodal_projector_bias", true);
  s.require("vision_feature_select_strategy", "default");
  // -1 is the output of the last layer, -2 its input; with -2 the last layer is not computed.
  std::int64_t feature_layer = -2;
  if (s.has("vision_feature_layer")) {
    const auto& v = s.at("vision_feature_layer");
    if (!v.is_number_integer()) return s.fail("vision_feature_layer", "an integer", v);
    feature_layer = v.get<std::int64_t>();
  }
  const auto layers =
      feature_layer < 0 ? std::int64_t{m.vision.layers} + 1 + feature_layer : feature_layer;
  if (layers < 1 || layers > m.vision.layers)
    return s.fail("vision_feature_layer", "a layer of the vision_config", feature_layer);
  m.vision.layers = static_cast<std::uint32_t>(layers);
}

}  // namespace

result<model_options> parse_config(std::string_view text, const std::string& source) {
  const auto parsed = parse_object(text, source);
  if (!parsed) return parsed.failure();
  const auto& read = *parsed;
  std::optional<error> failure;
  const section s(read, source, "", failure);
  model_options m;
  const auto type = s.text("model_type");
  if (type == "llava") {
    read_llava(s, m);
  } else if (type == "gpt2" || type == "llama" || type == "qwen3") {
    read_text(s, m);
  } else {
    s.fail("model_type", "\"gpt2\", \"llama\", \"qwen3\" or \"llava\"",
           s.has("model_type") ? s.at("model_type") : json(nullptr));
  }
  if (failure) return *failure;
  if (const auto fault = job::fault_of(m, 1, 1))
    return error{source + ": " + fault->key + ": expected " + fault->expected + ", got " +
                 fault->got};
  return m;
}

result<model_options> read_config(const std::string& path) {
  const auto file = config_file(path);
  const auto text = read_config_text(file);
  if (!text) return text.failure();
  return parse_config(*text, file);
}

}  // namespace rrfp::hugging_face

#include <rrfp/hugging_face/config.hpp>

#include <cstdint>
#include <utility>
#include <vector>

#include <rrfp/base/printable.hpp>
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

const char* name_of(activation_kind kind) {
  for (const auto& [word, k] : activations)
    if (k == kind) return word;
  return "";
}

json text_config(const model_options& m) {
  json c;
  if (m.family == architecture::gpt2) {
    c["architectures"] = {"GPT2LMHeadModel"};
    c["model_type"] = "gpt2";
    c["vocab_size"] = m.vocabulary;
    c["n_positions"] = m.context;
    c["n_embd"] = m.hidden;
    c["n_layer"] = m.layers;
    c["n_head"] = m.heads;
    c["n_inner"] = job::feed_forward_of(m);
    c["activation_function"] = name_of(job::activation_of(m));
    c["layer_norm_epsilon"] = m.norm_epsilon;
    for (const auto* key : {"embd_pdrop", "resid_pdrop"}) c[key] = m.dropout;
    c["attn_pdrop"] = 0.0;
  } else {
    const bool llama = m.family == architecture::llama;
    c["architectures"] = {llama ? "LlamaForCausalLM" : "Qwen3ForCausalLM"};
    c["model_type"] = llama ? "llama" : "qwen3";
    c["vocab_size"] = m.vocabulary;
    c["max_position_embeddings"] = m.context;
    c["hidden_size"] = m.hidden;
    c["intermediate_size"] = job::feed_forward_of(m);
    c["num_hidden_layers"] = m.layers;
    c["num_attention_heads"] = m.heads;
    c["num_key_value_heads"] = job::kv_heads_of(m);
    c["head_dim"] = job::head_width_of(m);
    c["hidden_act"] = name_of(job::activation_of(m));
    c["rms_norm_eps"] = m.norm_epsilon;
    c["attention_bias"] = m.attention_bias;
    if (llama) c["mlp_bias"] = m.mlp_bias;
    c["rope_theta"] = m.rope_theta;
    const auto& r = m.rope_scaling;
    if (r.factor != 1)
      c["rope_scaling"] = {
          {"rope_type", "llama3"},
          {"factor", r.factor},
          {"low_freq_factor", r.low_frequency_factor},
          {"high_freq_factor", r.high_frequency_factor},
          {"original_max_position_embeddings", static_cast<std::int64_t>(r.original_context)}};
  }
  c["tie_word_embeddings"] = m.tied_head;
  return c;
}

json vision_config(const vision_options& v) {
  return {{"model_type", "vit"},
          {"num_hidden_layers", v.layers},
          {"hidden_size", v.hidden},
          {"num_attention_heads", v.heads},
          {"intermediate_size", job::feed_forward_of(v)},
          {"patch_size", v.patch},
          {"image_size", v.image_size},
          {"layer_norm_eps", v.norm_epsilon},
          {"hidden_act", name_of(v.activation)},
          {"num_channels", 3},
          {"qkv_bias", true}};
}

json config_of(const model_options& m) {
  json c = text_config(m);
  if (m.vision.layers > 0) {
    c.erase("architectures");
    c = {{"architectures", {"LlavaForConditionalGeneration"}},
         {"model_type", "llava"},
         {"text_config", c},
         {"vision_config", vision_config(m.vision)},
         {"image_token_index", m.vision.image_token},
         {"projector_hidden_act", "gelu"},
         {"multimodal_projector_bias", true},
         {"vision_feature_layer", -1},
         {"vision_feature_select_strategy", m.vision.class_token ? "default" : "full"},
         {"tie_word_embeddings", m.tied_head}};
  }
  return c;
}

std::string text_of(json config, std::string_view dtype) {
  config["dtype"] = dtype;
  return config.dump(2) + "\n";
}

}  // namespace

status check_expressible(const model_options& m) {
  const auto refuse = [](const std::string& key, const std::string& expected,
                         const std::string& got) {
    return error{key + ": transformers has no such model: expected " + expected + ", got " + got};
  };
  const bool is_gpt2 = m.family == architecture::gpt2;
  if (is_gpt2 && job::head_width_of(m) * m.heads != m.hidden)
    return refuse("model.head_width", "hidden / heads with family gpt2",
                  std::to_string(job::head_width_of(m)));
  if (m.vision.layers == 0) return success();
  if (is_gpt2) return refuse("model.family", "llama or qwen3 with [vision]", "gpt2");
  if (!m.vision.class_token) return refuse("vision.class_token", "true", "false");
  return success();
}

std::vector<unused_parameter> unused_parameters(const model_options& m) {
  if (m.vision.layers == 0) return {};
  const std::int64_t width = m.vision.hidden;
  return {{"vision_tower.layernorm.weight", {width}, 1},
          {"vision_tower.layernorm.bias", {width}},
          {"vision_tower.pooler.dense.weight", {width, width}},
          {"vision_tower.pooler.dense.bias", {width}}};
}

std::string to_config(const model_options& m, std::string_view dtype) {
  return text_of(config_of(m), dtype);
}

result<std::string> config_with_dtype(const std::string& folder, const model_options& model,
                                      std::string_view dtype) {
  const auto file = config_file(folder);
  const auto text = read_config_text(file);
  if (!text) return text.failure();
  auto original = parse_config(*text, file);
  if (!original) return original.failure();
  original->dropout = model.dropout;  // a training setting, not a property of the model
  const auto expected = config_of(model), got = config_of(*original);
  for (const auto& [key, value] : expected.items())
    if (!got.contains(key) || got.at(key) != value)
      return error{file + ": " + key + ": expected " + value.dump() + ", got " +
                   (got.contains(key) ? printable(got.at(key).dump()) : "none")};
  auto parsed = parse_json<json>(*text);
  auto& config = std::get<json>(parsed);  // parsed above
  config.erase("torch_dtype");            // older name of dtype
  return text_of(std::move(config), dtype);
}

}  // namespace rrfp::hugging_face

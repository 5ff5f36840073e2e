#include <catch2/catch.hpp>

#include <rrfp/hugging_face/config.hpp>
#include <rrfp/job/model_rules.hpp>

namespace rrfp::hugging_face::test {

namespace {

std::string message_of(std::string_view json) {
  const auto read = parse_config(json, "config.json");
  return read ? "read" : read.message();
}

const std::string llama_sizes =
    R"("vocab_size": 320, "max_position_embeddings": 64, "hidden_size": 32,
       "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4)";

}  // namespace

TEST_CASE("a gpt2 config gives its sizes, and missing keys have transformers' defaults") {
  const auto m = parse_config(R"({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2,
                                  "vocab_size": 100, "n_inner": null})",
                              "x")
                     .value();
  CHECK(m.family == job::architecture::gpt2);
  CHECK(m.hidden == 64);
  CHECK(m.layers == 2);
  CHECK(m.context == 1024);
  CHECK(job::feed_forward_of(m) == 256);
  CHECK(m.tied_head);
  CHECK(*m.activation == job::activation_kind::gelu_tanh);
}

TEST_CASE("rotary positions are read in both of their forms") {
  const auto old = parse_config("{\"model_type\": \"llama\", " + llama_sizes +
                                    R"(, "rope_theta": 500000.0, "rope_scaling": {
      "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192}})",
                                "x")
                       .value();
  const auto now = parse_config("{\"model_type\": \"llama\", " + llama_sizes +
                                    R"(, "rope_parameters": {"rope_theta": 500000.0,
      "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192}})",
                                "x")
                       .value();
  CHECK(old == now);
  CHECK(old.rope_theta == 500000.0);
  CHECK(old.rope_scaling.factor == 8);
  CHECK(old.norm_epsilon == 1e-6);
  CHECK(job::kv_heads_of(old) == 4);
  CHECK(!old.tied_head);
}

TEST_CASE(
    "without a context of their own, stretched positions begin at the model's, as in "
    "transformers") {
  const auto read = [](const std::string& family, const std::string& rope) {
    return parse_config("{\"model_type\": \"" + family + "\", " + llama_sizes + ", " + rope + "}",
                        "x");
  };
  const std::string stretched =
      R"("rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0)";
  for (const std::string family : {"llama", "qwen3"})
    for (const std::string key : {"rope_scaling", "rope_parameters"}) {
      INFO(family << " " << key);
      const auto m = read(family, "\"" + key + "\": {" + stretched + "}").value();
      CHECK(m.rope_scaling.factor == 8);
      CHECK(m.rope_scaling.original_context == 64);  // max_position_embeddings
    }
  // If both are present, transformers uses the older one.
  const auto both = read("llama", "\"rope_scaling\": {" + stretched +
                                      "}, \"rope_parameters\": {\"rope_type\": \"default\"}");
  CHECK(both->rope_scaling.factor == 8);
  for (const std::string key : {"factor", "low_freq_factor", "high_freq_factor"}) {
    auto lacks = stretched;
    lacks.replace(lacks.find("\"" + key), 1, "\"_");
    CHECK(read("llama", "\"rope_scaling\": {" + lacks + "}").message() ==
          "x: rope_scaling." + key + ": expected a number, got null");
  }
}

TEST_CASE("a llava config keeps the encoder layers up to its feature layer") {
  const auto of_layer = [](const std::string& layer) {
    return parse_config(R"({"model_type": "llava", "image_token_index": 300,
      "vision_feature_layer": )" +
                            layer + R"(, "text_config": {"model_type": "qwen3", )" + llama_sizes +
                            R"(}, "vision_config": {"model_type": "vit", "hidden_size": 16,
      "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 32,
      "patch_size": 8}})",
                        "config.json");
  };
  const auto last = of_layer("-1").value();
  CHECK(last.vision.layers == 4);
  CHECK(last.vision.image_token == 300);
  CHECK(last.vision.patch == 8);
  CHECK(last.family == job::architecture::qwen3);
  CHECK(job::head_width_of(last) == 128);
  CHECK(of_layer("-2").value().vision.layers == 3);
  CHECK(of_layer("2").value().vision.layers == 2);
  CHECK_THAT(of_layer("7").message(), Catch::Contains("vision_feature_layer: expected a layer"));
}

TEST_CASE("a written config reads back") {
  auto m = parse_config("{\"model_type\": \"qwen3\", " + llama_sizes + "}", "x").value();
  m.tied_head = true;
  m.rope_scaling.factor = 4;
  m.rope_scaling.original_context = 32;
  CHECK(parse_config(to_config(m), "x").value() == [&] {
    auto same = m;
    same.kv_heads = job::kv_heads_of(m);
    same.activation = job::activation_of(m);
    return same;
  }());
  m.vision.layers = 2;
  m.vision.image_token = 7;
  m.vision.feed_forward = 99;
  const auto again = parse_config(to_config(m), "x").value();
  CHECK(again.vision == m.vision);
  CHECK(again.tied_head);
}

TEST_CASE("an unsupported config is refused with file and key") {
  CHECK(message_of("{") == "config.json:1: not JSON");
  CHECK(message_of("{\n\"model_type\": " + std::string(100'000, '[') + std::string(100'000, ']') +
                   "}") == "config.json:2: nested deeper than 64");
  CHECK(message_of("[]") == "config.json: expected a JSON object");
  CHECK(message_of(R"({"model_type": "bert"})") ==
        "config.json: model_type: expected \"gpt2\", \"llama\", \"qwen3\" or \"llava\", got "
        "\"bert\"");
  CHECK_THAT(message_of("{}"), Catch::Contains("model_type") && Catch::Contains("null"));
  CHECK_THAT(message_of(R"({"model_type": "llama"})"),
             Catch::Contains("vocab_size: expected an integer, got null"));
  const auto llama = [](const std::string& more) {
    return message_of("{\"model_type\": \"llama\", " + llama_sizes + ", " + more + "}");
  };
  CHECK(llama("\"tie_word_embeddings\": true") == "read");
  CHECK_THAT(llama("\"hidden_act\": \"tanh\""),
             Catch::Contains("hidden_act: expected one of gelu") && Catch::Contains("\"tanh\""));
  CHECK_THAT(llama("\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2.0}"),
             Catch::Contains("rope_scaling.rope_type") ||
                 Catch::Contains("rope_type: expected \"default\" or \"llama3\", got \"yarn\""));
  CHECK_THAT(llama("\"use_sliding_window\": true"),
             Catch::Contains("use_sliding_window: expected false, got true"));
  CHECK_THAT(llama("\"layer_types\": [\"sliding_attention\"]"), Catch::Contains("layer_types"));
  CHECK_THAT(llama("\"num_key_value_heads\": 3"),
             Catch::Contains("model.heads: expected a multiple of model.kv_heads = 3, got 4"));
  CHECK_THAT(llama("\"rms_norm_eps\": \"small\""), Catch::Contains("rms_norm_eps: expected a num"));
  CHECK_THAT(llama("\"num_hidden_layers\": -1"), Catch::Contains("expected an integer >= 0"));
  CHECK_THAT(message_of(R"({"model_type": "llava", "text_config": {}})"),
             Catch::Contains("vision_config: expected an object"));
}

TEST_CASE("a folder means its config.json, and a missing one is named") {
  const auto gone = read_config("/nonexistent/model");
  REQUIRE(!gone.ok());
  CHECK_THAT(gone.message(), Catch::Contains("/nonexistent/model"));
}

TEST_CASE("a model that transformers does not have is refused with the key") {
  job::model_options m;
  m.family = job::architecture::gpt2;
  m.hidden = 32;
  m.heads = 4;
  CHECK(check_expressible(m).ok());
  CHECK(unused_parameters(m).empty());
  m.head_width = 16;
  CHECK_THAT(check_expressible(m).message(),
             Catch::Contains("model.head_width: ") && Catch::Contains("got 16"));
  m.head_width = 0;
  m.vision.layers = 1;
  CHECK_THAT(check_expressible(m).message(), Catch::Contains("model.family: "));
  m.family = job::architecture::llama;
  CHECK(check_expressible(m).ok());
  CHECK(unused_parameters(m).size() == 4);
  m.vision.class_token = false;
  CHECK_THAT(check_expressible(m).message(), Catch::Contains("vision.class_token: "));
}

}  // namespace rrfp::hugging_face::test

#include <catch2/catch.hpp>

#include <rrfp/study/presets.hpp>

namespace rrfp::study {

using namespace workload;

namespace {

struct published {
  std::string_view preset;
  double decoder;
  double encoder;
};

/// Parameter counts from the models' papers and model cards.
constexpr published sizes[] = {
    {"gpt3-large", 760e6, 0},
    {"qwen3-1.7b-vit-h", 1.72e9, 632e6},
    {"qwen3-4b-vit-big", 4.02e9, 1.84e9},
    {"llama3-8b-vit-5b", 8.03e9, 5.0e9},
    {"qwen3-32b-internvit", 32.8e9, 5.54e9},
    {"llama3-70b-vit-22b", 70.6e9, 21.7e9},
    {"qwen3-1.7b-vit-l", 1.72e9, 303e6},
    {"qwen3-1.7b-vit-g", 1.72e9, 1.01e9},
    {"qwen3-1.7b-vit-big", 1.72e9, 1.84e9},
    {"llama3-8b-internvit", 8.03e9, 5.54e9},
    {"llama3-8b-vit-22b", 8.03e9, 21.7e9},
    {"qwen3-30b-a3b", 30.5e9, 0},
    {"mixtral-8x7b", 46.7e9, 0},
};

}  // namespace

TEST_CASE("every preset has the published number of parameters within 1 %") {
  REQUIRE(preset_names().size() == std::size(sizes));
  for (const auto& p : sizes) {
    const auto m = preset(p.preset);
    INFO(p.preset);
    REQUIRE(m);
    CHECK(m->name == p.preset);
    CHECK(static_cast<double>(parameters(m->text)) == Approx(p.decoder).epsilon(0.01));
    CHECK(m->images.has_value() == (p.encoder > 0));
    if (m->images)
      CHECK(static_cast<double>(parameters(*m->images)) == Approx(p.encoder).epsilon(0.01));
  }
}

TEST_CASE("a token passes the published number of parameters of a mixture") {
  const auto active = [](std::string_view name) {
    const auto d = preset(name)->text;
    auto dense = d;
    dense.layers = 0;
    return static_cast<double>(d.layers * active_parameters(d.layer) + parameters(dense));
  };
  CHECK(active("qwen3-30b-a3b") == Approx(3.3e9).epsilon(0.02));
  CHECK(active("mixtral-8x7b") == Approx(12.9e9).epsilon(0.01));
}

TEST_CASE("every preset is found by its name, other names are not") {
  for (const auto name : preset_names()) CHECK(preset(name));
  CHECK_FALSE(preset("gpt3"));
  CHECK_FALSE(preset(""));
}

TEST_CASE("four images of 256 tokens fill a multimodal sample") {
  for (const auto name : preset_names())
    if (const auto m = preset(name); m->images) {
      CHECK(m->images->tokens_per_image() == 256);
      CHECK(m->sequence_tokens == 4 * 256);
    }
}

}  // namespace rrfp::study

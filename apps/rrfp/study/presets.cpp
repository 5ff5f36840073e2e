#include <rrfp/study/presets.hpp>

#include <algorithm>
#include <iterator>

namespace rrfp::study {

using namespace workload;

namespace {

constexpr std::string_view names[] = {
    // Tables 1 and 2.
    "gpt3-large", "qwen3-1.7b-vit-h", "qwen3-4b-vit-big", "llama3-8b-vit-5b", "qwen3-32b-internvit",
    "llama3-70b-vit-22b",
    // The sweeps over encoders of Table 8.
    "qwen3-1.7b-vit-l", "qwen3-1.7b-vit-g", "qwen3-1.7b-vit-big", "llama3-8b-internvit",
    "llama3-8b-vit-22b",
    // Mixtures of experts.
    "qwen3-30b-a3b", "mixtral-8x7b"};

constexpr std::uint32_t sequence_tokens = 1024;
constexpr std::uint32_t text_sequence_tokens = 4096;
constexpr std::uint32_t qwen3_vocabulary = 151'936;
constexpr std::uint32_t llama3_vocabulary = 128'256;

/// SwiGLU, 8 key and value heads, heads of 128.
block modern(std::uint32_t hidden, std::uint32_t heads, std::uint32_t feed_forward) {
  return {hidden, heads, 8, 128, feed_forward, true, true};
}

encoder vision(std::uint32_t layers, std::uint32_t hidden, std::uint32_t heads,
               std::uint32_t feed_forward) {
  return {{hidden, heads, heads, hidden / heads, feed_forward, false, false}, layers, 256, 1};
}

template <class Part>
struct named {
  std::string_view name;
  Part part;
};

const named<decoder> decoders[] = {
    {"gpt3-large", {{1536, 16, 16, 96, 6144, false, true}, 24, 50'257, true, 2048}},
    {"qwen3-1.7b", {modern(2048, 16, 6144), 28, qwen3_vocabulary, true, 0}},
    {"qwen3-4b", {modern(2560, 32, 9728), 36, qwen3_vocabulary, true, 0}},
    {"qwen3-32b", {modern(5120, 64, 25'600), 64, qwen3_vocabulary, false, 0}},
    {"llama3-8b", {modern(4096, 32, 14'336), 32, llama3_vocabulary, false, 0}},
    {"llama3-70b", {modern(8192, 64, 28'672), 80, llama3_vocabulary, false, 0}},
    {"qwen3-30b-a3b",
     {{2048, 32, 4, 128, 768, true, true, 128, 8}, 48, qwen3_vocabulary, false, 0}},
    {"mixtral-8x7b", {{4096, 32, 8, 128, 14'336, true, true, 8, 2}, 32, 32'000, false, 0}}};

const named<encoder> encoders[] = {
    {"vit-l", vision(24, 1024, 16, 4096)},    {"vit-h", vision(32, 1280, 16, 5120)},
    {"vit-g", vision(40, 1408, 16, 6144)},    {"vit-big", vision(48, 1664, 16, 8192)},
    {"vit-5b", vision(48, 2944, 46, 11'776)}, {"internvit", vision(45, 3200, 25, 12'800)},
    {"vit-22b", vision(48, 6144, 48, 24'576)}};

}  // namespace

std::span<const std::string_view> preset_names() { return names; }

std::optional<model> preset(std::string_view name) {
  if (std::find(std::begin(names), std::end(names), name) == std::end(names)) return std::nullopt;
  for (const auto& [text, decoder] : decoders) {
    if (!name.starts_with(text)) continue;
    if (name == text)
      return model{std::string{name}, std::nullopt, decoder,
                   decoder.positions != 0 ? decoder.positions : text_sequence_tokens};
    for (const auto& [images, encoder] : encoders)
      if (name.substr(text.size() + 1) == images)
        return model{std::string{name}, encoder, decoder, sequence_tokens};
  }
  return std::nullopt;
}

}  // namespace rrfp::study

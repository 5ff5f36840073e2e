#include <rrfp/data/source.hpp>

#include <algorithm>
#include <string>
#include <utility>

#include <rrfp/data/text_source.hpp>

#include "image_set.hpp"
#include "jsonl_set.hpp"
#include "packed_source.hpp"
#include "shapes_set.hpp"
#include "token_set.hpp"

namespace rrfp::data {

namespace {

result<std::shared_ptr<const source>> open_text(const source_config& config) {
  text_config text;
  text.data = config.data;
  text.seed = config.seed;
  text.microbatches = config.microbatches;
  text.vocabulary = config.vocabulary;
  auto opened = text_source::make(text);
  if (!opened) return opened.failure();
  return std::shared_ptr<const source>{std::move(*opened)};
}

/// Bytes, the end token and the image token must be in the vocabulary of the model.
status check_vocabulary(const source_config& config, std::uint32_t largest) {
  if (largest < config.vocabulary) return success();
  return error{"expected model.vocabulary > " + std::to_string(largest) + ", got " +
               std::to_string(config.vocabulary)};
}

}  // namespace

std::string_view key_of(const job::data_options& data) {
  if (!data.text.empty()) return "data.text";
  if (!data.jsonl.empty()) return "data.jsonl";
  if (!data.tokens.empty()) return "data.tokens";
  if (!data.images.empty()) return "data.images";
  return data.shapes > 0 ? "data.shapes" : "data.text";
}

std::string fingerprint_text(const source& opened) {
  std::string text(16, '0');
  auto rest = opened.fingerprint();
  for (auto digit = text.rbegin(); rest != 0; ++digit, rest >>= 4)
    *digit = "0123456789abcdef"[rest & 15];
  return text;
}

status check_same_data(std::span<const std::string> fingerprint_texts) {
  const auto& first = fingerprint_texts.front();
  for (std::size_t node = 1; node < fingerprint_texts.size(); ++node)
    if (fingerprint_texts[node] != first)
      return error{"node " + std::to_string(node) + " read different data than node 0: expected " +
                   "fingerprint " + first + ", got " + fingerprint_texts[node]};
  return success();
}

result<std::shared_ptr<const source>> open_source(const source_config& config) {
  const auto key = key_of(config.data);
  if (key == "data.text") return open_text(config);
  if (key != "data.tokens") {
    const auto largest = std::max({255U, config.image_token, config.end_token});
    if (auto fits = check_vocabulary(config, largest); !fits) return fits.failure();
  }
  auto samples = key == "data.jsonl"    ? open_jsonl(config)
                 : key == "data.tokens" ? open_tokens(config)
                 : key == "data.images" ? open_images(config)
                                        : open_shapes(config);
  if (!samples) return samples.failure();
  return std::shared_ptr<const source>{
      std::make_shared<const packed_source>(config, std::move(*samples))};
}

}  // namespace rrfp::data

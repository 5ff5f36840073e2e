#include <rrfp/data/source.hpp>

#include <algorithm>
#include <utility>

#include <rrfp/data/text_source.hpp>

#include "packed_source.hpp"

namespace rrfp::data {

result<std::shared_ptr<const source>> open_source(const source_config& config) {
  const auto key = job::key_of(config.data);
  if (key == "data.text") return open_text(config);
  if (key != "data.tokens") {
    // Bytes, the end token and the image token must be in the vocabulary of the model.
    const auto largest = std::max({255U, config.image_token, config.end_token});
    if (largest >= config.vocabulary)
      return error{"expected model.vocabulary > " + std::to_string(largest) + ", got " +
                   std::to_string(config.vocabulary)};
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

/// Files for the sources, and checks of the contract of every source.
#pragma once

#include <cstdint>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <catch2/catch.hpp>

#include <rrfp/data/image_file.hpp>
#include <rrfp/data/shapes.hpp>
#include <rrfp/data/source.hpp>

#include "program.hpp"

namespace rrfp::data::test {

using rrfp::test::scratch_folder;

inline std::string write(const std::string& path, const std::string& bytes) {
  std::ofstream{path, std::ios::binary} << bytes;
  return path;
}

inline std::string write(const std::string& path, const std::vector<std::uint8_t>& bytes) {
  return write(path, std::string{bytes.begin(), bytes.end()});
}

/// An image whose pixels have consecutive colours.
inline pixels picture(std::int64_t height, std::int64_t width) {
  pixels p{{height, width}, {}};
  for (std::int64_t i = 0; i < 3 * height * width; ++i)
    p.rgb.push_back(static_cast<std::uint8_t>((37 * i + i / 7) % 256));
  return p;
}

inline std::string write_png(const std::string& path, std::int64_t height, std::int64_t width) {
  return write(path, encode_png(picture(height, width)).value());
}

inline source_config config_of(const std::function<void(job::data_options&)>& set) {
  source_config c;
  c.data.microbatch_size = 3;
  c.data.sequence_length = 64;
  c.seed = 5;
  c.microbatches = 4;
  c.vocabulary = job::byte_level::vocabulary;
  set(c.data);
  return c;
}

inline std::shared_ptr<const source> open_good(const source_config& config) {
  auto opened = open_source(config);
  INFO((opened ? "" : opened.message()));
  REQUIRE(opened.ok());
  return *opened;
}

/// The error for the data, one line, or "accepted".
inline std::string refusal(const source_config& config) {
  const auto opened = open_source(config);
  return opened ? "accepted" : opened.message();
}

inline std::vector<std::int64_t> numbers_of(const at::Tensor& tensor) {
  const auto flat = tensor.contiguous().view({-1});
  const auto* data = flat.const_data_ptr<std::int64_t>();
  return {data, data + flat.numel()};
}

/// The sequences of a microbatch as numbers. On any thread: Catch's checks are for one thread.
inline std::vector<std::vector<std::int64_t>> sequences_of(const compute::microbatch& batch,
                                                           const at::Tensor& of) {
  std::vector<std::vector<std::int64_t>> sequences;
  const auto all = numbers_of(of);
  auto begin = all.begin();
  for (const auto length : compute::layout_of(batch).lengths) {
    sequences.emplace_back(begin, begin + length);
    begin += length;
  }
  if (begin != all.end()) throw std::runtime_error("the lengths are not those of the tokens");
  return sequences;
}

/// Bytes as they are, an image token as "@", an end as "$".
inline std::string text_of(const std::vector<std::int64_t>& tokens) {
  std::string text;
  for (const auto t : tokens)
    text += t == job::byte_level::image_token ? '@'
            : t == job::byte_level::end_token ? '$'
            : t == compute::ignored_target    ? '_'
                                              : static_cast<char>(t);
  return text;
}

inline std::vector<std::string> inputs_of(const compute::microbatch& batch) {
  std::vector<std::string> texts;
  for (const auto& s : sequences_of(batch, batch.inputs)) texts.push_back(text_of(s));
  return texts;
}

inline std::vector<std::string> targets_of(const compute::microbatch& batch) {
  std::vector<std::string> texts;
  for (const auto& s : sequences_of(batch, batch.targets)) texts.push_back(text_of(s));
  return texts;
}

inline bool same(const compute::microbatch& a, const compute::microbatch& b) {
  if (a.lengths != b.lengths || a.tokens != b.tokens || a.images.size() != b.images.size())
    return false;
  for (std::size_t i = 0; i < a.images.size(); ++i)
    if (!at::equal(a.images[i], b.images[i])) return false;
  return at::equal(a.inputs, b.inputs) && at::equal(a.targets, b.targets);
}

/// Checks the contract of batch_source over some steps.
inline void check_promises(const source& s, const source_config& config) {
  for (std::uint64_t step = 0; step < 4; ++step) {
    std::int64_t step_tokens = 0;
    const auto microbatches = s.counts(step_id{step}).or_equal(1, config.microbatches);
    for (std::uint32_t mb = 0; mb < microbatches.total(); ++mb) {
      const auto batch = s.load(step_id{step}, microbatch_id{mb});
      CHECK(same(batch, s.load(step_id{step}, microbatch_id{mb})));
      auto text = s.load_text(step_id{step}, microbatch_id{mb});
      CHECK(text.images.empty());
      text.images = batch.images;
      CHECK(same(batch, text));
      const auto layout = s.layout(step_id{step}, microbatch_id{mb});
      CHECK(layout == compute::layout_of(batch));
      CHECK_FALSE(layout.lengths.empty());
      if (config.data.pack == job::sample_packing::order)
        CHECK(layout.lengths.size() == config.data.microbatch_size);
      std::int64_t tokens = 0;
      for (const auto length : layout.lengths) {
        CHECK(length > 0);
        CHECK(length <= config.data.sequence_length);
        tokens += length;
      }
      CHECK(tokens <= static_cast<std::int64_t>(config.data.microbatch_tokens()));
      CHECK(batch.inputs.numel() == tokens);  // no padding
      CHECK(batch.targets.sizes().equals(batch.inputs.sizes()));
      CHECK(batch.tokens == (batch.targets != compute::ignored_target).sum().item<std::int64_t>());
      CHECK((batch.inputs < config.vocabulary).all().item<bool>());
      std::int64_t patches = 0;
      for (const auto& image : batch.images) {
        CHECK(image.size(0) == 3);
        CHECK(image.size(1) % config.patch == 0);
        CHECK(image.size(2) % config.patch == 0);
        CHECK(image.scalar_type() == at::kFloat);
        patches += image.size(1) / config.patch * (image.size(2) / config.patch);
      }
      if (config.data.tokens.empty())
        CHECK((batch.inputs == config.image_token).sum().item<std::int64_t>() == patches);
      step_tokens += batch.tokens;
    }
    CHECK(s.step_tokens(step_id{step}) == step_tokens);
  }
}

}  // namespace rrfp::data::test

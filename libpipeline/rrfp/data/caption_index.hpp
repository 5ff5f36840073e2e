/// Token sequences of texts with images, for samples from files and for generated ones. Stores
/// sizes only; the caller holds texts and pixels.
///
/// The sequence of a sample is its bytes, then the end token. Each <image> in the text is replaced
/// by one image token per patch; without <image> in the text, all images come first. Only bytes and
/// end tokens are targets; the last patch of an image predicts the token after it.
///
/// With data.blind the image tokens are removed. The choice of samples and where they are cut stay
/// the same.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/data/source.hpp>

#include "bad_sample.hpp"
#include "image_tensor.hpp"
#include "sample_set.hpp"

namespace rrfp::data {

/// Marks the position of an image in a text.
inline constexpr std::string_view image_mark = "<image>";

class caption_index {
 public:
  /// Error: as image_scaler::make.
  static result<caption_index> make(const source_config& config);

  /// Adds a sample with images of these sizes (as on disk). Returns whether it is used; `filter`
  /// decides about unusable samples.
  result<bool> add(const std::string& where, std::string_view text,
                   std::span<const compute::image_size> images, sample_filter& filter);

  std::uint32_t count() const { return static_cast<std::uint32_t>(entries_.size()); }
  sample_size size(std::uint32_t sample) const { return entries_[sample].size; }
  /// Sizes of the images after scaling; none if blind.
  std::span<const compute::image_size> images(std::uint32_t sample) const;
  /// Writes the sequence of a sample with text `text`. False if the text no longer fits the sample.
  bool fill(std::uint32_t sample, std::string_view text, std::span<std::int64_t> inputs,
            std::span<std::int64_t> targets) const;

  const image_scaler& scaler() const { return scaler_; }
  bool is_blind() const { return blind_; }

 private:
  struct entry {
    sample_size size;
    std::uint32_t kept = 0;  ///< tokens, image tokens included
    std::uint32_t images = 0;
    std::uint64_t first_image = 0;
  };

  caption_index(const source_config& config, image_scaler scaler);
  std::span<const compute::image_size> all_images(const entry& e) const;

  image_scaler scaler_;
  std::int64_t image_token_;
  std::int64_t end_token_;
  bool blind_;
  std::vector<entry> entries_;
  /// Image sizes of all samples, concatenated.
  std::vector<compute::image_size> images_;
};

}  // namespace rrfp::data

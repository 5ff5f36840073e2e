/// Texts with images as sequences of tokens: what a sample of files and one that is made up have in
/// common. Holds their sizes; texts and pixels are the caller's.
///
/// The sequence of a sample: its bytes, with the image token once for each patch of an image where
/// the text says <image> (if it nowhere does, the images come first), then the end token. Targets
/// are bytes and ends alone; the last patch of an image predicts what follows it.
///
/// Blind, the sequence is the same without image tokens; which samples are used and where they are
/// cut does not change.
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

/// Where an image goes in a text.
inline constexpr std::string_view image_mark = "<image>";

class caption_index {
 public:
  /// Error: as image_scaler::make.
  static result<caption_index> make(const source_config& config);

  /// Takes in a sample with images of these sizes, as they are on disk. Gives whether it is in use;
  /// `gate` decides over what is not right.
  result<bool> add(const std::string& where, std::string_view text,
                   std::span<const compute::image_size> images, sample_gate& gate);

  std::uint32_t count() const { return static_cast<std::uint32_t>(entries_.size()); }
  sample_size size(std::uint32_t sample) const { return entries_[sample].size; }
  /// Of the images as the model takes them; none if blind.
  std::span<const compute::image_size> images(std::uint32_t sample) const;
  /// The sequence of a sample whose text is `text`. False if that is not its text.
  bool fill(std::uint32_t sample, std::string_view text, std::span<std::int64_t> inputs,
            std::span<std::int64_t> targets) const;

  const image_scaler& scaler() const { return scaler_; }
  bool is_blind() const { return blind_; }

 private:
  struct entry {
    sample_size size;
    std::uint32_t kept = 0;  ///< tokens before those of images are taken out
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
  /// Of all samples, one after another.
  std::vector<compute::image_size> images_;
};

}  // namespace rrfp::data

#include "sample_set.hpp"

#include <utility>

#include <xxhash.h>

#include <rrfp/base/check.hpp>
#include <rrfp/data/shapes.hpp>

#include "caption_index.hpp"

namespace rrfp::data {

namespace {

class shapes_set final : public sample_set {
 public:
  shapes_set(const source_config& config, caption_index captions)
      : seed_(config.data.shapes_seed),
        patch_(config.patch),
        filter_(config.data),
        captions_(std::move(captions)) {}

  status read(std::uint32_t samples) {
    for (std::uint32_t n = 0; n < samples; ++n) {
      const auto outline = draw_shapes(seed_, n, patch_, shapes_pixels::left_out);
      std::vector<compute::image_size> sizes;
      for (const auto& image : outline.images) sizes.push_back(image.size);
      const auto used = captions_.add("sample " + std::to_string(n), outline.text, sizes, filter_);
      if (!used) return used.failure();
      if (!*used) continue;
      numbers_.push_back(n);
      images_ += outline.images.size();
      fingerprint_ = XXH64(outline.text.data(), outline.text.size(), fingerprint_);
    }
    if (numbers_.empty()) return error{"no usable sample: " + filter_.summary()};
    return success();
  }

  std::uint32_t count() const override { return captions_.count(); }
  sample_size size(std::uint32_t sample) const override { return captions_.size(sample); }
  std::span<const compute::image_size> image_sizes(std::uint32_t sample) const override {
    return captions_.images(sample);
  }

  void load(std::uint32_t sample, std::span<std::int64_t> inputs, std::span<std::int64_t> targets,
            std::vector<at::Tensor>* images) const override {
    const bool paints = images != nullptr && !captions_.is_blind();
    const auto drawn = draw_shapes(seed_, numbers_[sample], patch_,
                                   paints ? shapes_pixels::painted : shapes_pixels::left_out);
    RRFP_CHECK(captions_.fill(sample, drawn.text, inputs, targets), "the text of the sample");
    if (!paints) return;
    for (const auto& image : drawn.images) images->push_back(captions_.scaler().scale(image));
  }

  std::uint64_t fingerprint() const override { return fingerprint_; }
  std::string report() const override {
    return filter_.report(count_of(numbers_.size(), "sample") + " of shapes with " +
                          count_of(images_, "image"));
  }

 private:
  const std::uint64_t seed_;
  const std::uint32_t patch_;
  sample_filter filter_;
  caption_index captions_;
  std::vector<std::uint32_t> numbers_;
  std::uint64_t images_ = 0;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace

result<std::unique_ptr<const sample_set>> open_shapes(const source_config& config) {
  auto captions = caption_index::make(config);
  if (!captions) return captions.failure();
  auto set = std::make_unique<shapes_set>(config, std::move(*captions));
  if (auto read = set->read(config.data.shapes); !read) return read.failure();
  return std::unique_ptr<const sample_set>{std::move(set)};
}

}  // namespace rrfp::data

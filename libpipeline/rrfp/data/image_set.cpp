#include "sample_set.hpp"

#include <filesystem>
#include <functional>
#include <stdexcept>
#include <utility>

#include <xxhash.h>

#include "caption_index.hpp"
#include "image_file.hpp"
#include "input_file.hpp"
#include "json_line.hpp"

namespace rrfp::data {

namespace {

/// Image paths are relative to the folder of the JSON lines file.
std::string image_path(const std::string& lines_path, const std::string& name) {
  return (std::filesystem::path{lines_path}.parent_path() / name).string();
}

class image_set final : public sample_set {
 public:
  image_set(const source_config& config, caption_index captions)
      : text_key_(config.data.text_key),
        decode_all_(config.data.when_bad == job::bad_samples::skip),
        filter_(config.data),
        captions_(std::move(captions)) {}

  status read(const std::vector<std::string>& paths) {
    if (auto all = lines_.read(paths, std::bind_front(&image_set::add, this)); !all) return all;
    if (places_.empty()) return filter_.no_samples_error(paths);
    return success();
  }

  std::uint32_t count() const override { return captions_.count(); }
  sample_size size(std::uint32_t sample) const override { return captions_.size(sample); }
  std::span<const compute::image_size> image_sizes(std::uint32_t sample) const override {
    return captions_.images(sample);
  }

  void load(std::uint32_t sample, std::span<std::int64_t> inputs, std::span<std::int64_t> targets,
            std::vector<at::Tensor>* images) const override {
    const auto& place = places_[sample];
    const auto fail = [&](const std::string& message) {
      throw std::runtime_error(lines_.where(place) + ": " + message);
    };
    const auto read = read_captioned(lines_.load(place), text_key_);
    const auto* line = std::get_if<captioned_images>(&read);
    const auto sizes = captions_.images(sample);
    if (line == nullptr || (!captions_.is_blind() && line->images.size() != sizes.size()) ||
        !captions_.fill(sample, line->text, inputs, targets))
      return fail("has changed since it was opened");
    if (images == nullptr) return;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const auto path = image_path(lines_.path(place), line->images[i]);
      const auto image = read_image(path);
      if (const auto* bad = fault_of(image)) return fail(path + ": " + bad->message);
      images->push_back(captions_.scaler().scale(std::get<pixels>(image)));
      const auto& made = images->back();
      if (compute::image_size{made.size(1), made.size(2)} != sizes[i])
        return fail(path + ": has changed since it was opened");
    }
  }

  std::uint64_t fingerprint() const override { return XXH64(&images_hash_, 8, lines_.hash()); }
  std::string report() const override {
    return filter_.report(count_of(places_.size(), "sample") + " with " +
                          count_of(images_, "image") + " in " + count_of(lines_.files(), "file"));
  }

  bool has_undecoded_images() const override {
    return images_ > 0 && !decode_all_ && !captions_.is_blind();
  }

 private:
  status add(std::string_view text, const line_place& place) {
    const auto where = lines_.where(place);
    const auto line = read_captioned(text, text_key_);
    if (const auto* bad = fault_of(line)) return filter_.refuse(where, *bad);
    const auto& captioned = std::get<captioned_images>(line);
    std::vector<compute::image_size> sizes;
    for (const auto& name : captioned.images) {
      const auto path = image_path(lines_.path(place), name);
      const auto size = check_image(path);
      if (const auto* bad = fault_of(size))
        return filter_.refuse(where, {bad->reason, path + ": " + bad->message});
      sizes.push_back(std::get<compute::image_size>(size));
    }
    const auto used = captions_.add(where, captioned.text, sizes, filter_);
    if (!used) return used.failure();
    if (!*used) return success();
    places_.push_back(place);
    images_ += sizes.size();
    for (const auto& size : sizes) {
      const std::int64_t sides[] = {size.height, size.width};
      images_hash_ = XXH64(sides, sizeof sides, images_hash_);
    }
    return success();
  }

  sample_or<compute::image_size> check_image(const std::string& path) const {
    if (!decode_all_) return read_image_size(path);
    auto image = read_image(path);
    if (const auto* bad = fault_of(image)) return *bad;
    return std::get<pixels>(image).size;
  }

  const std::string text_key_;
  const bool decode_all_;
  sample_filter filter_;
  line_index lines_;
  caption_index captions_;
  std::vector<line_place> places_;
  std::uint64_t images_ = 0;
  std::uint64_t images_hash_ = 0;
};

}  // namespace

result<std::unique_ptr<const sample_set>> open_images(const source_config& config) {
  auto captions = caption_index::make(config);
  if (!captions) return captions.failure();
  auto set = std::make_unique<image_set>(config, std::move(*captions));
  if (auto read = set->read(config.data.images); !read) return read.failure();
  return std::unique_ptr<const sample_set>{std::move(set)};
}

}  // namespace rrfp::data

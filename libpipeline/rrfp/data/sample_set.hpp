/// Numbered samples, each a sequence with its images. packed_source makes microbatches of them.
/// Immutable, so thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <rrfp/data/source.hpp>

namespace rrfp::data {

struct sample_size {
  std::uint32_t tokens = 0;   ///< of the sequence
  std::uint32_t counted = 0;  ///< targets that enter the loss
};

class sample_set {
 public:
  sample_set() = default;
  sample_set(const sample_set&) = delete;
  sample_set& operator=(const sample_set&) = delete;
  virtual ~sample_set() = default;

  /// At least 1.
  virtual std::uint32_t count() const = 0;
  /// Cheap: reads the index only.
  virtual sample_size size(std::uint32_t sample) const = 0;
  /// The sizes of the sample's images. Cheap.
  virtual std::span<const compute::image_size> image_sizes(std::uint32_t /*sample*/) const {
    return {};
  }
  /// Fills `inputs` and `targets`, size(sample).tokens each, and appends the images unless `images`
  /// is null. May throw a std::exception whose message names file and line.
  virtual void load(std::uint32_t sample, std::span<std::int64_t> inputs,
                    std::span<std::int64_t> targets, std::vector<at::Tensor>* images) const = 0;
  /// Whether all samples are windows of a text, of the same number of tokens.
  virtual bool are_windows() const { return false; }

  /// As in source.
  virtual std::uint64_t fingerprint() const = 0;
  virtual std::string report() const = 0;
  /// Whether load() may decode images for the first time and find one corrupt.
  virtual bool has_undecoded_images() const { return false; }
};

/// Sets the target of each position to the next token. The target is ignored_target at the last
/// position and before an image token. `image_token` = -1: there are no image tokens.
void set_targets(std::span<const std::int64_t> inputs, std::span<std::int64_t> targets,
                 std::int64_t image_token);

/// Documents of data.jsonl: the bytes of each text, then the end token. Memory holds only an index
/// of the lines; load() reads the text again. Error: one line with file and line.
result<std::unique_ptr<const sample_set>> open_jsonl(const source_config& config);

/// Samples of data.tokens. In a file with documents each document is a sample. Other files are
/// divided into windows of sequence_length tokens without overlap; the rest at the end is not used.
/// Error: one line with the file, and the document or the token.
result<std::unique_ptr<const sample_set>> open_tokens(const source_config& config);

/// Samples of data.images. Memory holds only an index of lines and image sizes; load() reads texts
/// and pixels. Reads the header of each image. With bad_samples = "skip" it decodes each image, so
/// that all nodes know in advance which samples are left out. Error: one line with file and line.
result<std::unique_ptr<const sample_set>> open_images(const source_config& config);

/// The samples of data.shapes, drawn when they are loaded. Error: a sample is too long; names its
/// number.
result<std::unique_ptr<const sample_set>> open_shapes(const source_config& config);

}  // namespace rrfp::data

/// Numbered samples, each a sequence with its images. packed_source makes microbatches of them.
/// Immutable, so thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <rrfp/torch/batch_source.hpp>

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
  /// Appends the sizes of the sample's images. Cheap.
  virtual void append_image_sizes(std::uint32_t /*sample*/,
                                  std::vector<compute::image_size>& /*to*/) const {}
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

}  // namespace rrfp::data

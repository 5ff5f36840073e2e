/// Numbered samples, each a sequence with its images: what a packed_source makes microbatches of.
/// Immutable, hence safe to use from several threads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <rrfp/compute/batch_source.hpp>

namespace rrfp::data {

struct sample_size {
  std::uint32_t tokens = 0;   ///< of the sequence
  std::uint32_t counted = 0;  ///< targets that count
};

class sample_set {
 public:
  sample_set() = default;
  sample_set(const sample_set&) = delete;
  sample_set& operator=(const sample_set&) = delete;
  virtual ~sample_set() = default;

  /// At least 1.
  virtual std::uint32_t count() const = 0;
  /// Cheap: from the index.
  virtual sample_size size(std::uint32_t sample) const = 0;
  /// Appends the sizes of the sample's images. Cheap.
  virtual void append_image_sizes(std::uint32_t /*sample*/,
                                  std::vector<compute::image_size>& /*to*/) const {}
  /// Fills `inputs` and `targets`, of size(sample).tokens each, and appends the images, unless
  /// `images` is null. May throw a std::exception whose message names file and line.
  virtual void load(std::uint32_t sample, std::span<std::int64_t> inputs,
                    std::span<std::int64_t> targets, std::vector<at::Tensor>* images) const = 0;
  /// Whether all have the same number of tokens, being windows of a text.
  virtual bool are_windows() const { return false; }

  /// As in source.
  virtual std::uint64_t fingerprint() const = 0;
  virtual std::string report() const = 0;
  /// Whether load() decodes images that have not been decoded before.
  virtual bool has_unread_images() const { return false; }
};

/// The target of each place is the token at the next, but for places before an image token, which
/// is nothing to predict, and the last one. Pass no token for `image_token` with -1.
void set_targets(std::span<const std::int64_t> inputs, std::span<std::int64_t> targets,
                 std::int64_t image_token);

}  // namespace rrfp::data

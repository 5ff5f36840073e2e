/// Sources of microbatches: text, documents, token files, text with images.
///
/// Sample n of a run is a pure function of n, the data and the seed, and the samples of a
/// microbatch follow from its step and number. So any node can load any microbatch at any time, and
/// a run that resumes at step k gets the same data as an uninterrupted one. Nodes that read
/// different data have different fingerprints.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <rrfp/base/result.hpp>
#include <rrfp/job/byte_level.hpp>
#include <rrfp/job/options.hpp>
#include <rrfp/torch/batch_source.hpp>

namespace rrfp::data {

struct source_config {
  job::data_options data;
  /// Determines the order of the samples.
  std::uint64_t seed = 1;
  /// Microbatches of a step, over all replicas; with data.max_tokens they count its samples alone.
  std::uint32_t microbatches = 1;
  /// Only for data.pack = "cost": it divides `microbatches`, and the model's FLOPs are the work.
  std::uint32_t replicas = 1;
  job::model_options model = {};
  /// Size of the vocabulary of the model; data with larger ids is refused.
  std::uint32_t vocabulary = 256;
  /// Side of a patch in pixels; images are scaled to multiples of it.
  std::uint32_t patch = 8;
  /// Occurs once for each patch of an image.
  std::uint32_t image_token = job::byte_level::image_token;
  /// Ends each document and each text with images.
  std::uint32_t end_token = job::byte_level::end_token;

  bool operator==(const source_config&) const = default;
};

class source : public compute::batch_source {
 public:
  /// XXH64 over the data: equal on nodes that read the same data. For images on disk it covers the
  /// JSON lines and the sizes of the images, not the pixels.
  virtual std::uint64_t fingerprint() const = 0;
  /// Counts of samples read and left out, in one line; may be empty.
  virtual std::string report() const = 0;
  /// Number of samples whose images have not been decoded: load() may find a corrupt one. All other
  /// data is checked when the source is opened.
  virtual std::uint64_t undecoded_samples() const { return 0; }
};

/// Opens and checks the data. Errors are one line and name file and line, but not
/// job::key_of(data).
result<std::shared_ptr<const source>> open_source(const source_config& config);

}  // namespace rrfp::data

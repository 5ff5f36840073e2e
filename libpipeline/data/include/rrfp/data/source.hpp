/// Where the microbatches of a job come from: text, documents, token files, text with images.
///
/// Sample number n of a run is a pure function of n (and of the data and the seed), and the samples
/// of a microbatch follow from its step and number: any node can load any microbatch at any time,
/// and a run that goes on at step k sees what it would have seen. Nodes that read different files
/// show different fingerprints.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <rrfp/compute/batch_source.hpp>
#include <rrfp/job/byte_level.hpp>
#include <rrfp/job/options.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp::data {

struct source_config {
  job::data_options data;
  /// The order of the samples follows from it.
  std::uint64_t seed = 1;
  /// Microbatches in a step, those of all replicas together.
  std::uint32_t microbatches = 1;
  /// Ids that the model knows; data with others is refused.
  std::uint32_t vocabulary = 256;
  /// Side of the square that the model makes one row of, in pixels: the sides of images become
  /// multiples of it.
  std::uint32_t patch = 8;
  /// Stands once for each patch of an image.
  std::uint32_t image_token = job::byte_level::image_token;
  /// Ends each document and each text with images.
  std::uint32_t end_token = job::byte_level::end_token;
};

class source : public compute::batch_source {
 public:
  /// XXH64 over what the samples are made of: equal on two nodes that read the same data. Of images
  /// on disk it takes in the lines that name them and their heights and widths, not the pixels.
  virtual std::uint64_t fingerprint() const = 0;
  /// What was read and what was left out, in one line; empty if there is nothing to say.
  virtual std::string report() const = 0;
  /// Samples whose images nobody has decoded yet: load() may find one broken. All else was looked
  /// at when the source was opened.
  virtual std::uint64_t unread_samples() const { return 0; }
};

/// The key of the data that is given, such as "data.jsonl"; of the first one if it is several.
std::string_view key_of(const job::data_options& data);

/// Opens and checks all that data names. Errors are one line and name file and line; the key is
/// that of key_of().
result<std::shared_ptr<const source>> open_source(const source_config& config);

/// What nodes exchange to learn whether they read the same.
std::string fingerprint_text(const source& opened);
/// Error: names the first node that read something else than node 0. By rank.
status check_same_data(std::span<const std::string> fingerprint_texts);

}  // namespace rrfp::data

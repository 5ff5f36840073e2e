/// Byte-level text: every byte is a token and every sequence is a window of the corpus.
///
/// A hash of (seed, step, microbatch, sequence) selects the window, uniformly over the corpus, so
/// any node can load any microbatch at any time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <rrfp/data/source.hpp>

namespace rrfp::data {

/// The corpus is held in memory; a larger corpus is an error.
inline constexpr std::uint64_t corpus_bytes_max = std::uint64_t{1} << 30;

class text_source final : public source {
 public:
  /// Reads every file of data.text in the given order. A folder means all regular files below it,
  /// sorted by path; links to folders are not followed. Errors name the path: missing, unreadable,
  /// a folder without files, no path at all, fewer than sequence_length + 1 bytes in total, more
  /// than `bytes_max`, a byte outside the vocabulary.
  static result<std::shared_ptr<const text_source>> make(
      const source_config& config, std::uint64_t bytes_max = corpus_bytes_max);

  compute::microbatch load(step_id step, microbatch_id mb) const override;
  compute::microbatch_layout layout(step_id step, microbatch_id mb) const override;
  std::int64_t step_tokens(step_id step) const override;

  std::uint64_t bytes() const { return corpus_.size(); }
  /// XXH64 of the corpus.
  std::uint64_t fingerprint() const override { return fingerprint_; }
  /// Empty: no text is left out.
  std::string report() const override { return {}; }

 private:
  text_source(const source_config& config, std::vector<std::uint8_t> corpus);

  source_config config_;
  std::vector<std::uint8_t> corpus_;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace rrfp::data

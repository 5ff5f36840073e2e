/// Byte-level text: every byte is a token and every sequence is a window of the corpus.
///
/// A hash of (seed, step, microbatch, sequence) selects the window, uniformly over the corpus, so
/// any node can load any microbatch at any time.
#pragma once

#include <cstdint>
#include <memory>

#include <rrfp/data/source.hpp>

namespace rrfp::data {

/// The corpus is held in memory; a larger corpus is an error.
inline constexpr std::uint64_t corpus_bytes_max = std::uint64_t{1} << 30;

/// Reads every file of data.text in the given order. A folder means all regular files below it,
/// sorted by path; links to folders are not followed. Errors name the path: missing, unreadable, a
/// folder without files, no path at all, fewer than sequence_length + 1 bytes in total, more than
/// `bytes_max`, a byte outside the vocabulary.
result<std::shared_ptr<const source>> open_text(const source_config& config,
                                                std::uint64_t bytes_max = corpus_bytes_max);

}  // namespace rrfp::data

/// Samples of data.tokens. In a file with documents each document is a sample. Other files are
/// divided into windows of sequence_length tokens without overlap; the rest at the end is not used.
#pragma once

#include <memory>

#include <rrfp/data/source.hpp>

#include "sample_set.hpp"

namespace rrfp::data {

/// Error: one line with the file, and the document or the token.
result<std::unique_ptr<const sample_set>> open_tokens(const source_config& config);

}  // namespace rrfp::data

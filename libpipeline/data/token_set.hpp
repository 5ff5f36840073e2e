/// Samples of data.tokens: of a file with documents each document, of another the windows of
/// sequence_length tokens one after another, without overlap; what is left at its end is not used.
#pragma once

#include <memory>

#include <rrfp/data/source.hpp>

#include "sample_set.hpp"

namespace rrfp::data {

/// Error: one line with the file, and the document or the token.
result<std::unique_ptr<const sample_set>> open_tokens(const source_config& config);

}  // namespace rrfp::data

/// Documents of data.jsonl: the bytes of each text, then the end token.
///
/// Memory holds only an index of the lines; load() reads the text again.
#pragma once

#include <memory>

#include <rrfp/data/source.hpp>

#include "sample_set.hpp"

namespace rrfp::data {

/// Error: one line with file and line.
result<std::unique_ptr<const sample_set>> open_jsonl(const source_config& config);

}  // namespace rrfp::data

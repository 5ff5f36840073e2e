/// The samples of data.shapes, drawn when they are loaded.
#pragma once

#include <memory>

#include <rrfp/data/source.hpp>

#include "sample_set.hpp"

namespace rrfp::data {

/// Error: a sample is too long; names its number.
result<std::unique_ptr<const sample_set>> open_shapes(const source_config& config);

}  // namespace rrfp::data

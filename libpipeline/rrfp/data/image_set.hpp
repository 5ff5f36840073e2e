/// Samples of data.images. Memory holds only an index of lines and image sizes; load() reads texts
/// and pixels.
#pragma once

#include <memory>

#include <rrfp/data/source.hpp>

#include "sample_set.hpp"

namespace rrfp::data {

/// Reads the header of each image. With bad_samples = "skip" it decodes each image, so that all
/// nodes know in advance which samples are left out. Error: one line with file and line.
result<std::unique_ptr<const sample_set>> open_images(const source_config& config);

}  // namespace rrfp::data

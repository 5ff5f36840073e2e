/// Samples of data.images. An index of lines and of the sizes of images is held; texts and pixels
/// are read whenever a sample is loaded.
#pragma once

#include <memory>

#include <rrfp/data/source.hpp>

#include "sample_set.hpp"

namespace rrfp::data {

/// Looks at the head of each image, or with bad_samples = skip at all of it, so that what is left
/// out is known to all nodes beforehand. Error: one line with file and line.
result<std::unique_ptr<const sample_set>> open_images(const source_config& config);

}  // namespace rrfp::data

/// Checks the image preprocessing of a Hugging Face folder: "image_processor" of
/// processor_config.json, or else preprocessor_config.json.
#pragma once

#include <string>

#include <rrfp/base/result.hpp>
#include <rrfp/job/options.hpp>

namespace rrfp::hugging_face {

/// Error: the file requires unsupported preprocessing (resizing to a fixed size, cropping, padding)
/// or other values than data.image_mean and data.image_std; names file, key, the expected and the
/// actual value. A folder without such a file passes. Thread-safe.
status check_image_processor(const std::string& folder, const job::data_options& data);

}  // namespace rrfp::hugging_face

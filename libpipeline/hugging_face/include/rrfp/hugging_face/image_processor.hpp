/// What a folder of Hugging Face says is done to images before the model sees them:
/// processor_config.json (its "image_processor") or else preprocessor_config.json.
#pragma once

#include <string>

#include <rrfp/job/options.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp::hugging_face {

/// Error: the file asks for what is not done with images here (resizing to a fixed size, cropping,
/// padding), or for other numbers than data.image_mean and data.image_std; names file, key, what
/// was expected and what came. A folder without such a file asks for nothing. Thread-safe.
status check_image_processor(const std::string& folder, const job::data_options& data);

}  // namespace rrfp::hugging_face

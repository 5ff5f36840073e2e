/// Reads the JSON files of a model folder.
#pragma once

#include <string>
#include <string_view>

#include <rrfp/base/result.hpp>
#include <rrfp/io/parse_json.hpp>

namespace rrfp::hugging_face {

/// Error: the file cannot be read, or has more than config_bytes_max bytes.
result<std::string> read_config_text(const std::string& file);

/// `source` names the file in errors. Error: the text is not JSON, or not an object.
result<nlohmann::ordered_json> parse_object(std::string_view text, const std::string& source);

}  // namespace rrfp::hugging_face

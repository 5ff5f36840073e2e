/// Parses the lines of data.jsonl and data.images.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bad_sample.hpp"

namespace rrfp::data {

/// The text of {"KEY": "..."}; it may be empty.
sample_or<std::string> read_document(std::string_view line, const std::string& text_key);

struct captioned_images {
  std::string text;
  /// Paths as written in the line.
  std::vector<std::string> images;
};

/// Parses {"images": ["..."], "KEY": "..."} or {"image": "...", "KEY": "..."}; images may be empty.
sample_or<captioned_images> read_captioned(std::string_view line, const std::string& text_key);

}  // namespace rrfp::data

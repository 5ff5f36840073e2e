/// "Did you mean": the known name that is closest to a mistyped one.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace rrfp::job {

/// The name with the fewest inserted, deleted, changed or swapped letters; of equally close ones
/// that of the nearest length, then the first. Nothing if more than a third of the letters differ.
std::optional<std::string_view> closest(std::string_view word,
                                        std::span<const std::string_view> names);

/// ", did you mean NAME?"; if no name is close, "; " + `otherwise` + all names.
std::string suggestion(std::string_view word, std::span<const std::string_view> names,
                       std::string_view otherwise);

}  // namespace rrfp::job

/// "Did you mean": the known name nearest to a mistyped one.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace rrfp::job {

/// The name with the fewest inserted, dropped, changed or swapped letters; nothing if more than a
/// third of the letters would differ. The first of equals.
std::optional<std::string_view> closest(std::string_view word,
                                        std::span<const std::string_view> names);

/// ", did you mean NAME?", or without a near name "; " + `otherwise` + all of them.
std::string suggestion(std::string_view word, std::span<const std::string_view> names,
                       std::string_view otherwise);

}  // namespace rrfp::job

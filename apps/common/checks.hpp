/// Checks of the values of options. Their errors say what was expected and what came.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <rrfp/base/printable.hpp>

namespace rrfp::apps {

/// A number from `least` to `most`; not NaN.
template <class Number>
CLI::Validator between(Number least, Number most) {
  return {[least, most](std::string& text) {
            Number value{};
            const bool is_number = CLI::detail::lexical_cast(text, value);
            if (is_number && value >= least && value <= most) return std::string{};
            return fmt::format("expected {} to {}, got {}", least, most, text);
          },
          ""};
}

/// One of these words.
inline CLI::Validator one_of(std::vector<std::string> words) {
  return {[words = std::move(words)](std::string& text) {
            if (std::find(words.begin(), words.end(), text) != words.end()) return std::string{};
            return fmt::format("expected {}, got {}", alternatives(words), text);
          },
          ""};
}

}  // namespace rrfp::apps

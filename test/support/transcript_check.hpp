/// A transcript as a test: passes the events of a text to a core and returns the text with the
/// core's actions, one per line after two spaces. The test passes if both texts are equal.
#pragma once

#include <sstream>
#include <string>

#include <rrfp/core/stage_core.hpp>
#include <rrfp/core/transcript.hpp>

#include "parse_event.hpp"

namespace rrfp::testing {

/// Lines that start with a space are the expected actions and are not read. Leading and trailing
/// empty lines are ignored, so a raw string can be laid out freely.
inline std::string replayed(stage_core& core, const std::string& text) {
  std::istringstream lines{text};
  std::string out = "\n";
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == ' ') continue;
    const auto e = parse_event(line);
    out += line + "\n";
    if (!e) return out + "  " + e.message();
    for (const auto& a : core.on(*e)) out += "  " + to_line(a) + "\n";
  }
  return out;
}

}  // namespace rrfp::testing

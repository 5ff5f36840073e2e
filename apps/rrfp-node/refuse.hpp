/// What the commands say to bad input: one line, and the exit code for it.
#pragma once

#include <string>

#include <fmt/format.h>

#include "exit_code.hpp"

namespace rrfp::apps {

inline int refuse(const std::string& message) {
  fmt::print(stderr, "rrfp-node: {}\n", message);
  return exit_bad_input;
}

}  // namespace rrfp::apps

/// The kinds of input files: a valid example of each, and the commands that read it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "mutate.hpp"

namespace rrfp::fuzz {

struct command {
  std::string program;
  std::vector<std::string> arguments;
};

/// Runs a command in a folder; throws if it fails.
using runner = std::function<void(const std::string& folder, const command&)>;

struct kind {
  std::string name;
  /// Creates the unchanged input in the folder; called once.
  std::function<void(const std::string& folder, const runner&)> prepare;
  /// Changes the input in a copy of that folder, and returns the command that reads it.
  std::function<command(const std::string& folder, mutator&)> change;
  /// Commands that must succeed on the unchanged input; otherwise the kind tests nothing.
  std::vector<command> unchanged;
};

std::vector<kind> all_kinds();

}  // namespace rrfp::fuzz

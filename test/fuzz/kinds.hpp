/// The kinds of files that the programs read, real ones of each, and the command that reads them.
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

/// Runs a command in a folder; throws if it does not end well.
using runner = std::function<void(const std::string& folder, const command&)>;

struct kind {
  std::string name;
  /// What is read, unchanged, in the folder; made once.
  std::function<void(const std::string& folder, const runner&)> prepare;
  /// Changes what prepare() made, in a copy of that folder, and says what reads it.
  std::function<command(const std::string& folder, mutator&)> change;
  /// The same without a change: these must end well, or the kind tests nothing.
  std::vector<command> unchanged;
};

std::vector<kind> all_kinds();

}  // namespace rrfp::fuzz

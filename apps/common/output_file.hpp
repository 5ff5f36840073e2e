/// Checks of output files that command-line options name.
#pragma once

#include <string>

#include <rrfp/io/atomic_file.hpp>

namespace rrfp::apps {

/// Checks before the work that the file of `option` can be written. An empty path passes.
inline status check_output(const std::string& option, const std::string& path) {
  if (path.empty()) return success();
  const auto writable = files::check_writable(path);
  return writable ? success() : status{error{option + " " + writable.message()}};
}

}  // namespace rrfp::apps

/// Files that an option of a program names.
#pragma once

#include <string>

#include <rrfp/files/atomic_file.hpp>

namespace rrfp::apps {

/// Whether the file that `option` names can be written, found out before the work. No name: it can.
inline status check_output(const std::string& option, const std::string& path) {
  if (path.empty()) return success();
  const auto can = files::check_writable(path);
  return can ? success() : status{error{option + " " + can.message()}};
}

}  // namespace rrfp::apps

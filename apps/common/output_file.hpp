/// Checks of output files that command-line options name.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <rrfp/io/atomic_file.hpp>

namespace rrfp::apps {

/// Checks before the work that the file of `option` can be written. An empty path passes.
inline status check_output(const std::string& option, const std::string& path) {
  if (path.empty()) return success();
  const auto writable = io::check_writable(path);
  return writable ? success() : status{error{option + " " + writable.message()}};
}

/// Checks that no output replaces an input or another output. `outputs`: options and their paths;
/// an empty path passes, and so does a device.
inline status check_distinct(const std::vector<std::string>& inputs,
                             const std::vector<std::pair<std::string, std::string>>& outputs) {
  namespace fs = std::filesystem;
  const auto place_of = [](const std::string& path) {
    std::error_code unknown;
    const auto place = fs::weakly_canonical(fs::absolute(path, unknown), unknown);
    return unknown ? path : place.string();
  };
  std::map<std::string, std::string> uses;
  for (const auto& path : inputs) uses.emplace(place_of(path), "the input");
  for (const auto& [option, path] : outputs) {
    std::error_code unknown;
    if (path.empty() || (fs::exists(path, unknown) && !fs::is_regular_file(path, unknown)))
      continue;
    const auto [use, is_new] = uses.emplace(place_of(path), option);
    if (!is_new)
      return error{option + " " + path + ": expected another file than " + use->second +
                   ", which it would replace"};
  }
  return success();
}

/// Writes the file of `option`, whole. An empty path passes. Errors are error_kind::failed.
inline status write_output(const std::string& option, const std::string& path,
                           std::string_view text) {
  if (path.empty()) return success();
  const auto written = io::write_atomically(path, text);
  return written ? success() : status{error{option + " " + written.message(), error_kind::failed}};
}

/// Both checks.
inline status check_outputs(const std::vector<std::string>& inputs,
                            const std::vector<std::pair<std::string, std::string>>& outputs) {
  auto good = check_distinct(inputs, outputs);
  for (const auto& [option, path] : outputs)
    if (good) good = check_output(option, path);
  return good;
}

}  // namespace rrfp::apps

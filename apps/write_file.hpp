/// Files that programs leave.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>

#include <fmt/format.h>

#include <rrfp/schedule/result.hpp>

namespace rrfp::apps {

/// What is written beside and renamed takes the place of what was there: a device or a pipe must not.
inline status replaceable(const std::string& path) {
  std::error_code unknown;
  const auto there = std::filesystem::status(path, unknown);
  if (!std::filesystem::exists(there) || std::filesystem::is_regular_file(there)) return success();
  return error{fmt::format("{}: cannot write: expected a file's name, got a {}", path,
                           std::filesystem::is_directory(there) ? "folder" : "device or pipe")};
}

/// Written beside and renamed: whole or absent. The error names the file and why.
inline status write_file(const std::string& path, const std::string& text) {
  if (auto can = replaceable(path); !can) return can;
  const auto beside = path + ".tmp";
  std::FILE* const file = std::fopen(beside.c_str(), "w");
  const bool written =
      file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = file != nullptr && std::fclose(file) == 0;
  if (written && closed && std::rename(beside.c_str(), path.c_str()) == 0) return success();
  const std::string why = std::strerror(errno);
  std::remove(beside.c_str());
  return error{fmt::format("{}: cannot write: {}", path, why)};
}

}  // namespace rrfp::apps

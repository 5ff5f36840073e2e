/// Reading what a user wrote.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <rrfp/schedule/result.hpp>

namespace rrfp::job {

/// The file's bytes, at most job_bytes_max. The error says why there are none; `what` is what was
/// expected, "a job file".
result<std::string> read_text_file(const std::string& path, std::string_view what);

/// A path that a file in `folder` names, whole and without "..".
std::string absolute_path(const std::filesystem::path& folder, const std::string& path);

}  // namespace rrfp::job

/// Reads the text files that a user writes.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <rrfp/base/result.hpp>

namespace rrfp::job {

/// The contents of the file, at most job_bytes_max bytes. The error gives the reason; `what` names
/// the expected kind of file in it: "a job file".
result<std::string> read_text_file(const std::string& path, std::string_view what);

/// The absolute, normalized form of a path that is relative to `folder`.
std::string absolute_path(const std::filesystem::path& folder, const std::string& path);

}  // namespace rrfp::job

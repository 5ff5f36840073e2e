/// Reads a whole text file.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <rrfp/base/result.hpp>

namespace rrfp::io {

/// The contents of a file. `what` names the expected kind of file: "a job file". Errors: "PATH:
/// cannot be read: WHY"; "PATH: expected WHAT of at most N bytes, got more".
result<std::string> read_text_file(const std::string& path, std::size_t bytes_max,
                                   std::string_view what);

}  // namespace rrfp::io

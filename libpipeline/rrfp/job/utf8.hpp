/// Checks for UTF-8: names and paths are written to JSON, which requires it.
#pragma once

#include <string_view>

#include <rrfp/base/result.hpp>
#include <rrfp/job/value.hpp>

namespace rrfp::job {

/// Error: "expected UTF-8, got the byte 0xFF at 12".
status check_utf8(std::string_view text);
/// The same for all strings in a value.
status check_utf8(const value& v);

}  // namespace rrfp::job

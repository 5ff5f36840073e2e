/// Checks for UTF-8: names and paths are written to JSON, which requires it.
#pragma once

#include <cstddef>
#include <string_view>

#include <rrfp/base/result.hpp>
#include <rrfp/job/value.hpp>

namespace rrfp::job {

/// The position of the first byte that does not begin a valid character; the size of `text` if all
/// of it is valid.
std::size_t end_of_utf8(std::string_view text);

/// Error: "expected UTF-8, got the byte 0xFF at 12".
status check_utf8(std::string_view text);
/// The same for all strings in a value.
status check_utf8(const value& v);

}  // namespace rrfp::job

/// Names and paths end up in JSON, which is UTF-8.
#pragma once

#include <cstddef>
#include <string_view>

#include <rrfp/job/value.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp::job {

/// Where the first byte is that begins no character; the size of `text` if there is none.
std::size_t end_of_utf8(std::string_view text);

/// Error: "expected UTF-8, got the byte 0xFF at 12".
status check_utf8(std::string_view text);
/// The same of all strings in it.
status check_utf8(const value& v);

}  // namespace rrfp::job

/// Text in lines of limited width.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace rrfp::job {

/// The words of the text, in lines of at most `columns` characters that begin with `prefix` and end
/// with a newline; longer words have a line of their own.
std::string wrapped(std::string_view text, std::string_view prefix, std::size_t columns);

}  // namespace rrfp::job

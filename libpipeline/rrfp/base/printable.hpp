/// Text as a part of a message: a terminal and a log must be able to show what comes from outside.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace rrfp {

/// The position of the first byte that does not begin a valid UTF-8 character; the size of `text`
/// if all of it is valid.
std::size_t end_of_utf8(std::string_view text);

/// The text as one line of valid UTF-8: a control character or an invalid byte becomes '?', and a
/// text of more than `bytes_max` bytes is cut and ends with "...".
std::string printable(std::string_view text, std::size_t bytes_max = 80);

/// "a, b or c".
std::string alternatives(const std::vector<std::string>& words);

/// The words of the text, in lines of at most `columns` characters that begin with `prefix` and end
/// with a newline; longer words have a line of their own.
std::string wrapped(std::string_view text, std::string_view prefix, std::size_t columns);

}  // namespace rrfp

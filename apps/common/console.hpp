/// What a program says: results and progress on standard output, what went wrong on standard error.
///
/// Each call is written at once, unbuffered, and none throws: a log that cannot be written must not
/// end a training. A reader that has left (`| head -1`) is no failure: what comes later goes
/// nowhere. Any other failure of standard output is told once on standard error, and the program
/// ends with exit code 1 where it would have ended with 0 (program.hpp).
#pragma once

#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace rrfp::apps {

/// Thread-safe; the texts of two calls do not mix.
void write_out(std::string_view text);
void write_error(std::string_view text);

/// To standard output.
template <class... Values>
void print(fmt::format_string<Values...> format, Values&&... values) {
  write_out(fmt::format(format, std::forward<Values>(values)...));
}
/// To standard error.
template <class... Values>
void print_error(fmt::format_string<Values...> format, Values&&... values) {
  write_error(fmt::format(format, std::forward<Values>(values)...));
}

/// Whether something that was to stand on standard output could not be written.
bool has_output_failed();

}  // namespace rrfp::apps

/// The output of a program: results and progress on standard output, errors on standard error.
///
/// Each call writes at once, unbuffered, and never throws: a failed write to the log must not end a
/// training. A reader that closes the pipe (`| head -1`) is not a failure: later output is
/// discarded. Any other failure of standard output is reported once on standard error, and the
/// program then ends with exit code 1 instead of 0 (program.hpp).
#pragma once

#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace rrfp::apps {

/// Thread-safe; the texts of concurrent calls do not interleave.
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

/// Name given to run_program().
const char* program_name();

/// A line on standard error that begins with the name of the program.
template <class... Values>
void complain(fmt::format_string<Values...> format, Values&&... values) {
  print_error("{}: {}\n", program_name(), fmt::format(format, std::forward<Values>(values)...));
}

/// Whether a write to standard output failed, other than by a closed pipe.
bool has_output_failed();

}  // namespace rrfp::apps

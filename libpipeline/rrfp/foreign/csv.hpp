/// Lines and cells of text files of any size.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/base/parse_number.hpp>
#include <rrfp/base/result.hpp>

namespace rrfp::foreign {

/// Maximum length of a line; names of kernels have thousands of bytes.
inline constexpr std::size_t line_bytes_max = std::size_t{64} << 10;

/// Calls `take` for each line, without its end, until it fails. The file may be compressed by gzip.
/// Errors: those of `take`; the file cannot be read, is cut off, or has a longer line.
/// `what`: of which kind the file is, for these errors.
status read_lines(const std::string& file, std::string_view what,
                  const std::function<status(std::string_view)>& take);

/// The cells of a line without blanks and quotes around them; a comma in quotes is no separator.
std::vector<std::string_view> cells_of(std::string_view line);

}  // namespace rrfp::foreign

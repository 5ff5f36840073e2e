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

using csv_cells = std::vector<std::string_view>;

/// The cells of a line without blanks and quotes around them; a comma in quotes is no separator.
csv_cells cells_of(std::string_view line);

/// A table that is read line by line, and errors that name the line.
class csv_table {
 public:
  explicit csv_table(std::string file) : file_(std::move(file)) {}

  const std::string& file() const { return file_; }
  /// read_lines() without blank ones; `take` gets the cells, too.
  status read(std::string_view what,
              const std::function<status(std::string_view, const csv_cells&)>& take);
  /// "file:line: expected ..., got ..."; the line is the one that was read last.
  error expected(std::string_view what, std::string_view got) const;

 private:
  const std::string file_;
  std::uint64_t line_ = 0;
};

}  // namespace rrfp::foreign

/// Regular files for random-access reads, and an index of the lines of several. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/base/result.hpp>

namespace rrfp::data {

class input_file {
 public:
  /// Error: "cannot be read: ...", without the path; also for anything but a regular file.
  static result<std::shared_ptr<const input_file>> open(const std::string& path);
  input_file(const input_file&) = delete;
  input_file& operator=(const input_file&) = delete;
  ~input_file();

  const std::string& path() const { return path_; }
  /// In bytes, when the file was opened.
  std::uint64_t size() const { return size_; }
  /// Error: as above; also if the file ends before `to` is full.
  status read(std::uint64_t offset, std::span<std::uint8_t> to) const;

 private:
  input_file(std::string path, int descriptor, std::uint64_t size)
      : path_(std::move(path)), descriptor_(descriptor), size_(size) {}

  const std::string path_;
  const int descriptor_;
  const std::uint64_t size_;
};

/// Longest line, in bytes; a longer line is an error.
inline constexpr std::uint64_t line_bytes_max = std::uint64_t{64} << 20;

/// The position of a line, without the newline.
struct line_place {
  std::uint64_t offset = 0;
  std::uint64_t number = 0;  ///< from 1
  std::uint32_t bytes = 0;
  std::uint32_t file = 0;  ///< of those of a line_index
};

/// Calls `use` with each line that is not blank. Stops at the first error of `use` and returns it.
/// Other errors: "PATH: cannot be read: ..." or "PATH:LINE: ...".
status for_each_line(const input_file& file,
                     const std::function<status(std::string_view, line_place)>& use);

/// An index of the lines of JSON lines files, shared by all sources that read such files.
class line_index {
 public:
  /// Opens each file and calls `use` with each line that is not blank. Error: one line with the
  /// file, and the line number if there is one; or the first error of `use`.
  status read(const std::vector<std::string>& paths,
              const std::function<status(std::string_view, line_place)>& use);

  /// "FILE:LINE".
  std::string where(const line_place& place) const;
  const std::string& path(const line_place& place) const { return files_[place.file]->path(); }
  /// Reads a line again. Throws std::runtime_error if it cannot be read.
  std::string load(const line_place& place) const;

  /// XXH64 over all lines read so far.
  std::uint64_t hash() const { return hash_; }
  std::size_t files() const { return files_.size(); }

 private:
  std::vector<std::shared_ptr<const input_file>> files_;
  std::uint64_t hash_ = 0;
};

}  // namespace rrfp::data

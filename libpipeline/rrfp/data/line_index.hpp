/// An index of the lines of JSON lines files, shared by all sources that read such files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <xxhash.h>

#include "input_file.hpp"

namespace rrfp::data {

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

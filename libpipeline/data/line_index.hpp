/// The lines of files that samples are made of: what every source of JSON lines has in common.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <xxhash.h>

#include "input_file.hpp"

namespace rrfp::data {

/// Where a sample's line stands.
struct line_place {
  std::uint64_t offset = 0;
  std::uint64_t number = 0;  ///< from 1
  std::uint32_t bytes = 0;
  std::uint32_t file = 0;
};

class line_index {
 public:
  /// Opens each file and calls `use` with each of its lines that is not blank. Error: one line with
  /// the file, and the line if there is one; or what `use` returns.
  status read(const std::vector<std::string>& paths,
              const std::function<status(std::string_view, const line_place&)>& use);

  /// "FILE:LINE".
  std::string where(const line_place& place) const;
  const std::string& path(const line_place& place) const { return files_[place.file]->path(); }
  /// The line again. Throws std::runtime_error if it cannot be read.
  std::string load(const line_place& place) const;

  /// Over all lines so far.
  std::uint64_t hash() const { return hash_; }
  std::size_t files() const { return files_.size(); }

 private:
  std::vector<std::shared_ptr<const input_file>> files_;
  std::uint64_t hash_ = 0;
};

}  // namespace rrfp::data

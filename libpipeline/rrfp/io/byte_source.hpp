/// A file that is read in pieces, whatever its size: plain, or compressed by gzip.
///
/// Holds one piece in memory. Not thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/base/result.hpp>

struct gzFile_s;

namespace rrfp::io {

class byte_source {
 public:
  /// Errors: the file cannot be read, or is a folder. They name the file.
  static result<byte_source> open(const std::string& file);

  /// The next piece, valid until the next call; empty at the end and after a fault.
  std::string_view next();
  /// Why next() ended before the end of the file, without its name: "cut: ...". Empty: it did not.
  const std::string& fault() const { return fault_; }

 private:
  explicit byte_source(gzFile_s* opened);

  std::unique_ptr<gzFile_s, int (*)(gzFile_s*)> file_;
  std::vector<char> piece_;
  std::string fault_;
};

/// The first bytes of a file, uncompressed, at most `bytes_max`. Errors: those of open(), and a
/// fault before them.
result<std::string> head_of(const std::string& file, std::size_t bytes_max);

}  // namespace rrfp::io

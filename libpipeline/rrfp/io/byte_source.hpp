/// A file that is read in pieces, whatever its size: plain, or compressed by gzip.
///
/// Holds one piece in memory. Not thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <rrfp/base/result.hpp>

namespace rrfp::files {

class byte_source {
 public:
  /// Errors: the file cannot be read, or is a folder. They name the file.
  static result<byte_source> open(const std::string& file);
  byte_source(byte_source&&) noexcept;
  byte_source& operator=(byte_source&&) noexcept;
  ~byte_source();

  /// The next piece, valid until the next call; empty at the end and after a fault.
  std::string_view next();
  /// Why next() ended before the end of the file, without its name: "cut: ...". Empty: it did not.
  const std::string& fault() const;

 private:
  struct state;
  explicit byte_source(std::unique_ptr<state> s);
  std::unique_ptr<state> state_;
};

/// The first bytes, at most `bytes_max`.
result<std::string> head_of(const std::string& file, std::size_t bytes_max);

}  // namespace rrfp::files

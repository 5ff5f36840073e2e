/// Incremental XXH64. Detects files that were altered or truncated by accident; not cryptographic,
/// so it does not protect against forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <rrfp/base/result.hpp>

namespace rrfp::checkpoint {

/// Not thread-safe.
class checksum {
 public:
  checksum();
  checksum(const checksum&) = delete;
  checksum& operator=(const checksum&) = delete;
  ~checksum();

  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const;
  std::uint64_t bytes() const { return bytes_; }

 private:
  struct state;
  std::unique_ptr<state> state_;
  std::uint64_t bytes_ = 0;
};

std::uint64_t checksum_of(std::string_view text);

/// 16 hexadecimal digits.
std::string hex(std::uint64_t value);

struct file_sum {
  std::uint64_t bytes = 0;
  std::uint64_t xxh64 = 0;
};

/// Size and checksum of a whole file. Error: the file cannot be read; names the file.
result<file_sum> sum_of_file(const std::string& path);

}  // namespace rrfp::checkpoint

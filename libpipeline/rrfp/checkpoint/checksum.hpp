/// Incremental XXH64. Detects files that were altered or truncated by accident; not cryptographic,
/// so it does not protect against forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <xxhash.h>

#include <rrfp/base/result.hpp>

namespace rrfp::checkpoint {

/// Not thread-safe.
class checksum {
 public:
  checksum();

  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const { return XXH64_digest(state_.get()); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::unique_ptr<XXH64_state_t, XXH_errorcode (*)(XXH64_state_t*)> state_{XXH64_createState(),
                                                                           XXH64_freeState};
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

/// Detects changed content; not a cryptographic hash.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace rrfp::experiment {

/// FNV-1a, in hexadecimal.
inline std::string checksum(std::string_view text) {
  std::uint64_t sum = 0xcbf29ce484222325U;
  for (const char c : text) sum = (sum ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return fmt::format("{:016x}", sum);
}

}  // namespace rrfp::experiment

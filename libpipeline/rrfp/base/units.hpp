/// Conversions from the units of the runtime, nanoseconds and bytes, to those that people read.
#pragma once

#include <cstdint>

namespace rrfp {

inline constexpr double mebibyte = 1 << 20;
inline constexpr double gibibyte = 1 << 30;

constexpr double mebibytes(std::int64_t bytes) { return static_cast<double>(bytes) / mebibyte; }

constexpr double milliseconds(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1e6;
}
constexpr double seconds(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1e9;
}

}  // namespace rrfp

/// The purpose of a draw. Draws with different salts are independent.
#pragma once

#include <cstdint>

namespace rrfp::weather {

enum class salt : std::uint64_t {
  compute = 1,
  link = 2,
  spread = 3,
  pause = 4,
  loss = 5,
  shape = 7
};

constexpr std::uint64_t pack(std::uint32_t high, std::uint32_t low) {
  return std::uint64_t{high} << 32 | low;
}

}  // namespace rrfp::weather

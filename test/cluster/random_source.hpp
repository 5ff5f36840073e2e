/// Random numbers of the simulator: equal seeds give equal numbers, on every machine.
#pragma once

#include <cstdint>

namespace rrfp::cluster {

/// Hashes two values to one; the order matters.
constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  auto x = a * 0x9e3779b97f4a7c15u + (b ^ 0xd1b54a32d192ed03u);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class random_source {
 public:
  explicit random_source(std::uint64_t seed) : state_(mix(seed, 0x5eed)) {}
  random_source(std::uint64_t seed, std::uint64_t purpose) : random_source(mix(seed, purpose)) {}

  std::uint64_t next() { return mix(state_++, 0); }
  std::uint64_t below(std::uint64_t limit) { return limit == 0 ? 0 : next() % limit; }
  /// Both ends are included.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(high - low) + 1));
  }
  bool one_in(std::uint64_t n) { return below(n) == 0; }

 private:
  std::uint64_t state_;
};

}  // namespace rrfp::cluster

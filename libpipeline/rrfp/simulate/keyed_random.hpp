/// Random numbers that depend only on their key, not on earlier draws.
///
/// A 64-bit mixer (the finalizer of SplitMix64, Steele, Lea and Flood 2014, in Stafford's variant
/// 13) absorbs the words of the key one by one; a counter then separates the draws of one key. A
/// draw is the same whoever makes it, when, and in which order, so two runs that execute in
/// different orders get the same disturbances.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <numbers>

namespace rrfp::simulate {

/// A bijection of 64-bit words in which every input bit moves every output bit.
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

/// The draws of one key, in sequence.
class keyed_random {
 public:
  /// The order of the words matters: {1, 2} and {2, 1} are different keys.
  constexpr keyed_random(std::initializer_list<std::uint64_t> key) {
    for (const auto word : key) state_ = mix(state_ * odd + mix(word + golden));
  }

  /// Uniform over all 64-bit words.
  constexpr std::uint64_t bits() { return mix(state_ + golden * ++drawn_); }
  /// Uniform in [0, 1), in steps of 2^-53.
  constexpr double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  /// Mean 0, standard deviation 1 (Box and Muller 1958); takes two draws.
  double normal() {
    const auto radius = std::sqrt(-2.0 * std::log1p(-uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }

 private:
  static constexpr std::uint64_t golden = 0x9e3779b97f4a7c15U;
  /// Breaks the symmetry between a key's words.
  static constexpr std::uint64_t odd = 0xd1342543de82ef95U;

  std::uint64_t state_ = 0;
  std::uint64_t drawn_ = 0;
};

}  // namespace rrfp::simulate

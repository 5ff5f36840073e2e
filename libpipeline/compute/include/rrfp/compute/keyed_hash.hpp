/// Random numbers by name: a hash of what they are for is the seed. Depends on the key alone, not
/// on the machine, the standard library or what was drawn before.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include <xxhash.h>

namespace rrfp::compute {

inline std::uint64_t keyed_hash(std::initializer_list<std::uint64_t> key) {
  return XXH64(key.begin(), key.size() * sizeof(std::uint64_t), 0);
}

inline std::uint64_t hash_of_name(std::string_view name) {
  return XXH64(name.data(), name.size(), 0);
}

/// The first word of every key: what the numbers are for. Two uses never share a stream.
enum class random_use : std::uint64_t {
  initial_weight = 1,
  dropout_mask = 2,
  text_window = 3,
  sample_order = 4,
  shapes = 5,
};

}  // namespace rrfp::compute

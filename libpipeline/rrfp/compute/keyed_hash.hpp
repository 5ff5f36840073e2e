/// Counter-based random numbers: a hash of a key that identifies the use. The result depends on the
/// key alone, not on the machine, the standard library or earlier draws.
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

/// The first word of every key: the purpose, so that two purposes never share a stream.
enum class random_use : std::uint64_t {
  initial_weight = 1,
  dropout_mask = 2,
  text_window = 3,
  sample_order = 4,
  shapes = 5,
  user_module = 6,
};

}  // namespace rrfp::compute

/// The fingerprint of a collective: the call that a rank believes it is making. Ranks that disagree
/// would otherwise sum unrelated data, or wait for each other for ever. With the fingerprint, the
/// first disagreement is an error that names both tasks.
///
/// Pure: no clock, thread or device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <rrfp/base/ids.hpp>
#include <rrfp/core/task.hpp>

namespace rrfp::tp_coord {

enum class element : std::uint8_t { float32, float64, int64 };

std::size_t bytes_of(element type);
std::string_view name(element type);

enum class operation : std::uint8_t { sum, max, gather, broadcast, barrier };

std::string_view name(operation op);

/// The launch that collectives belong to.
struct call_site {
  step_id step;
  launch_seq launch;
  task launched_task;

  bool operator==(const call_site&) const = default;
};

struct fingerprint {
  call_site site;
  std::uint32_t ordinal = 0;  ///< number of the collective within its launch, from 0
  operation op = operation::barrier;
  element type = element::float32;
  rank_id root;             ///< of a broadcast
  std::uint64_t count = 0;  ///< elements that each rank contributes (gather) or holds (others)

  std::size_t bytes() const { return count * bytes_of(type); }
  bool operator==(const fingerprint&) const = default;
};

/// "all-reduce (sum) of 4096 float32, number 2 of F3 (step 13, launch 57)"
std::string to_string(const fingerprint& f);

/// Empty if all fingerprints agree. Otherwise names the first rank that differs from rank 0, with
/// both texts. `prints` is indexed by rank.
std::optional<std::string> disagreement(std::span<const fingerprint> prints);

/// The wire format that precedes the data; little-endian.
using encoded_fingerprint = std::array<std::byte, 48>;

encoded_fingerprint encode(const fingerprint& f);
/// Empty if the bytes are not a fingerprint.
std::optional<fingerprint> decode(std::span<const std::byte> bytes);

}  // namespace rrfp::tp_coord

/// The headers of messages: fixed, little-endian and self-describing. wire_format.md is the
/// normative description. Pure: bytes in, values out; no UCX, no clock, no thread.
///
/// A decoder checks the checksum of a header and then each field before it uses one: the other
/// process may run another version or another job, or may be faulty.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <rrfp/actors/transport.hpp>
#include <rrfp/base/result.hpp>

namespace rrfp::actors::ucx {

inline constexpr std::uint16_t wire_version = 1;
inline constexpr std::size_t dims_max = 8;

/// Codes of the wire format; their meaning never changes.
enum class wire_dtype : std::uint8_t {
  uint8 = 1,
  int8 = 2,
  int16 = 3,
  int32 = 4,
  int64 = 5,
  float16 = 6,
  bfloat16 = 7,
  float32 = 8,
  float64 = 9,
  boolean = 10,
};

/// 0 for an unknown code.
std::size_t item_bytes(wire_dtype dtype);

/// The header of a tensor.
struct tensor_header {
  std::uint64_t job_token = 0;
  std::uint32_t epoch = 0;
  node_id from_node;
  /// Counts the messages of the edge (message.from, message.to) within an epoch, from 0.
  std::uint64_t sequence = 0;
  message_header message;
  wire_dtype dtype = wire_dtype::float32;
  std::uint8_t dims = 0;
  std::array<std::int64_t, dims_max> shape{};  ///< the first `dims` count, the rest is 0
  std::uint64_t data_bytes = 0;
  bool has_data_hash = false;
  std::uint64_t data_hash = 0;

  std::span<const std::int64_t> sizes() const { return {shape.data(), dims}; }
  bool operator==(const tensor_header&) const = default;
};

/// The header of a message of a rank_channel.
struct bytes_header {
  std::uint64_t job_token = 0;
  std::uint32_t epoch = 0;
  node_id from_node;
  std::uint32_t group = 0;
  rank_id from;  ///< positions in the group
  rank_id to;
  std::uint64_t tag = 0;
  std::uint64_t data_bytes = 0;
  bool has_data_hash = false;
  std::uint64_t data_hash = 0;
  bool closes = false;  ///< the group is closed for `to`; the data is the reason

  bool operator==(const bytes_header&) const = default;
};

/// A node leaves, or answers the farewell of a node that leaves.
struct farewell_header {
  std::uint64_t job_token = 0;
  std::uint32_t epoch = 0;
  node_id from_node;
  bool is_answer = false;

  bool operator==(const farewell_header&) const = default;
};

inline constexpr std::size_t header_bytes_max = 176;
using header_buffer = std::array<std::byte, header_bytes_max>;

/// Each writes one header to the front of `into` and returns its length.
std::size_t encode(const tensor_header& header, header_buffer& into);
std::size_t encode(const bytes_header& header, header_buffer& into);
std::size_t encode(const farewell_header& header, header_buffer& into);

/// Each accepts exactly one header of its kind and version, with an intact checksum and valid
/// fields. An error says which check failed, with both numbers. The caller checks the limits on the
/// size of the data, because it then knows the sender.
result<tensor_header> decode_tensor_header(std::span<const std::byte> bytes);
result<bytes_header> decode_bytes_header(std::span<const std::byte> bytes);
result<farewell_header> decode_farewell_header(std::span<const std::byte> bytes);

/// The checksum of the wire format: XXH3, 64 bits, seed 0.
std::uint64_t hash_of(std::span<const std::byte> bytes);

}  // namespace rrfp::actors::ucx

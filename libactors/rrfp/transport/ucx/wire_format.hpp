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

#include <rrfp/base/result.hpp>
#include <rrfp/core/transport_frames.hpp>

namespace rrfp::actors::ucx {

using namespace messaging;

inline constexpr std::uint16_t wire_version = 3;

inline constexpr std::size_t header_bytes_max = 176;
using header_buffer = std::array<std::byte, header_bytes_max>;

/// Each writes one header to the front of `into` and returns its length.
std::size_t encode(const tensor_header& header, header_buffer& into);
std::size_t encode(const bytes_header& header, header_buffer& into);
std::size_t encode(const actor_message_header& header, header_buffer& into);
std::size_t encode(const disconnect_header& header, header_buffer& into);

/// Each accepts exactly one header of its kind and version, with an intact checksum and valid
/// fields. An error says which check failed, with both numbers. The caller checks the limits on the
/// size of the data, because it then knows the sender.
result<tensor_header> decode_tensor_header(std::span<const std::byte> bytes);
result<bytes_header> decode_bytes_header(std::span<const std::byte> bytes);
result<actor_message_header> decode_actor_message_header(std::span<const std::byte> bytes);
result<disconnect_header> decode_disconnect_header(std::span<const std::byte> bytes);

/// The checksum of the wire format: XXH3, 64 bits, seed 0.
std::uint64_t hash_of(std::span<const std::byte> bytes);

}  // namespace rrfp::actors::ucx

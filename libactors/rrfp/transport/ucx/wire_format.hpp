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

/// Writes one header, of any of the four kinds, to the front of `into` and returns its length.
template <class Header>
std::size_t encode(const Header& header, header_buffer& into);

/// Accepts exactly one header of this kind and version, with an intact checksum and valid fields.
/// An error says which check failed, with both numbers. The caller checks the limits on the size of
/// the data, because it then knows the sender.
template <class Header>
result<Header> decode(std::span<const std::byte> bytes);

/// The checksum of the wire format: XXH3, 64 bits, seed 0.
std::uint64_t hash_of(std::span<const std::byte> bytes);

}  // namespace rrfp::actors::ucx

/// The headers of the messages between nodes, as values.
/// libactors/rrfp/transport/ucx/wire_format.md describes them as bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <rrfp/base/tensor_buffer.hpp>
#include <rrfp/core/message_header.hpp>

namespace rrfp::messaging {

inline constexpr std::size_t dims_max = 8;

/// The header of a tensor.
struct tensor_header {
  std::uint64_t job_token = 0;
  std::uint32_t epoch = 0;
  node_id from_node;
  /// Counts the messages of the edge (message.from, message.to) within an epoch, from 0.
  std::uint64_t sequence = 0;
  message_header message;
  dtype type = dtype::float32;
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

/// The header of an actor message; those from one node to another arrive in order.
struct actor_message_header {
  std::uint64_t job_token = 0;
  std::uint32_t epoch = 0;
  node_id from_node;
  /// Counts the actor messages between these two nodes within an epoch, from 0.
  std::uint64_t sequence = 0;
  std::uint64_t data_bytes = 0;
  bool has_data_hash = false;
  std::uint64_t data_hash = 0;

  bool operator==(const actor_message_header&) const = default;
};

/// A node leaves, or answers the disconnect message of a node that leaves.
struct disconnect_header {
  std::uint64_t job_token = 0;
  std::uint32_t epoch = 0;
  node_id from_node;
  bool is_answer = false;

  bool operator==(const disconnect_header&) const = default;
};

/// What became of a message that was to be delivered.
enum class delivery : std::uint8_t {
  done,
  closed,     ///< this node receives no more
  damaged,    ///< the data does not match its checksum
  no_memory,  ///< for the data
  not_bound,  ///< a tensor to an address without a receiver
  full,       ///< the buffer of a rank channel that nobody reads
  garbled,    ///< an actor message that its reader does not understand
};

}  // namespace rrfp::messaging

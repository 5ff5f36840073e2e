/// The header of a message between ranks: sender, receiver, and the task whose input it carries.
#pragma once

#include <cstdint>

#include <rrfp/base/ids.hpp>
#include <rrfp/core/placement.hpp>

namespace rrfp {

enum class payload : std::uint8_t {
  activation,     ///< the input of an F
  gradient,       ///< the input of a B or BW
  tied_gradient,  ///< one side's gradient of a parameter that two stages hold
  signal,         ///< between the gates of two nodes (transport.hpp)
  opened_sum,     ///< a gradient sum that another replica continues (microbatch_shares)
  /// Bytes of the copy of the state of rank `from`, for recovery; `mb` is the number of the piece.
  copy_piece,
};

/// Whether it is the input of a task.
constexpr bool is_input(payload kind) {
  return kind == payload::activation || kind == payload::gradient;
}

/// The input of a task of this kind.
constexpr payload payload_for(task_kind receiver) {
  return receiver == task_kind::forward ? payload::activation : payload::gradient;
}

/// Where a node receives pieces of copies; no rank has this address.
constexpr rank_address copies_at(node_id node) { return {stage_id{~0U}, rank_id{node.value()}}; }

struct message_header {
  payload kind = payload::activation;
  step_id step;
  /// The task whose input the tensor is; unused for gradients of parameters.
  microbatch_id mb;
  chunk_id chunk;
  rank_address from;
  rank_address to;

  bool operator==(const message_header&) const = default;
};

}  // namespace rrfp

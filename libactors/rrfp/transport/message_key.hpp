/// Identifies a message within a run.
#pragma once

#include <tuple>

#include <rrfp/transport/transport.hpp>

namespace rrfp::actors {

/// The step first, so that older messages sort first. The sender is not part of the key.
using message_key = std::tuple<step_id, payload, microbatch_id, chunk_id, rank_address>;

inline message_key key_of(const message_header& h) { return {h.step, h.kind, h.mb, h.chunk, h.to}; }

}  // namespace rrfp::actors

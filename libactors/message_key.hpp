/// What tells one message from all others of a run.
#pragma once

#include <tuple>

#include <rrfp/actors/transport.hpp>

namespace rrfp::actors {

/// Steps first, so that what is older stands before. Who sends it does not count.
using message_key = std::tuple<step_id, payload, microbatch_id, chunk_id, rank_address>;

inline message_key key_of(const message_header& h) { return {h.step, h.kind, h.mb, h.chunk, h.to}; }

}  // namespace rrfp::actors

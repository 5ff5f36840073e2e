/// The state of a stage for hang reports. Travels between nodes.
#pragma once

#include <cstdint>
#include <vector>

#include <rrfp/base/ids.hpp>
#include <rrfp/core/stage_snapshot.hpp>

#include "fields.hpp"

namespace rrfp::actors {

enum class stage_phase : std::uint8_t { idle, running, ending, updating };

struct stage_state {
  replica_id replica;
  stage_id stage;
  stage_phase phase = stage_phase::idle;
  stage_snapshot core;
  bool awaits_batch = false;       ///< its program has not given the batch of the step
  std::vector<std::int64_t> ages;  ///< nanoseconds since each of core.running was launched
  rank_set in_collective = 0;      ///< ranks on the stage's node that are in a collective
  rank_set not_ended = 0;          ///< in phase ending: ranks that have not ended the step
};

auto fields(auto f, stage_state& x) {
  return f(x.replica, x.stage, x.phase, x.core, x.awaits_batch, x.ages, x.in_collective,
           x.not_ended);
}

}  // namespace rrfp::actors

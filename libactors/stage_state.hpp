/// The state of a stage for hang reports. Travels between nodes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <rrfp/base/ids.hpp>
#include <rrfp/schedule/event.hpp>
#include <rrfp/schedule/task.hpp>

#include "serialization.hpp"

namespace rrfp::actors {

/// Ranks of a stage as bits; a stage has at most 64.
using rank_set = std::uint64_t;

/// "rank 1" or "ranks 0, 3"
std::string to_text(rank_set ranks);

/// A launch that some ranks have not finished.
struct flight {
  task launched_task;
  launch_seq seq;
  std::int64_t age = 0;  ///< nanoseconds since it was launched
  rank_set behind = 0;   ///< ranks that have not finished it
};

enum class stage_phase : std::uint8_t { idle, running, ending };

struct stage_state {
  replica_id replica;
  stage_id stage;
  step_id step;
  stage_phase phase = stage_phase::idle;
  /// The stage can launch nothing; `waiting` says why.
  bool waits = false;
  wait waiting;
  std::uint32_t ready = 0;      ///< tasks that could be launched if they fit in memory
  std::uint32_t remaining = 0;  ///< tasks of the step not launched yet
  std::uint32_t slots_limit = 0;
  std::vector<flight> flights;
  /// The ranks that have the input of F and of B, by chunk * microbatches + microbatch.
  std::vector<rank_set> activations;
  std::vector<rank_set> gradients;
  /// Finished on every rank, by the same index: bit 0 F, bit 1 B or BW, bit 2 the weight gradient.
  std::vector<std::uint8_t> finished;
  std::vector<microbatch_id> holders;  ///< of slots
  rank_set in_collective = 0;          ///< ranks on the stage's node that are in a collective
  rank_set not_ended = 0;              ///< in phase ending: ranks that have not ended the step
};

inline constexpr std::uint8_t forward_finished = 1;
inline constexpr std::uint8_t backward_finished = 2;
inline constexpr std::uint8_t weight_finished = 4;

auto fields(auto f, flight& x) { return f(x.launched_task, x.seq, x.age, x.behind); }
auto fields(auto f, stage_state& x) {
  return f(x.replica, x.stage, x.step, x.phase, x.waits, x.waiting.why, x.waiting.head, x.ready,
           x.remaining, x.slots_limit, x.flights, x.activations, x.gradients, x.finished, x.holders,
           x.in_collective, x.not_ended);
}

}  // namespace rrfp::actors

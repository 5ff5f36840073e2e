/// What a stage core knows about its step, as plain data. Hang reports, the text of a stalled
/// simulation and tests read from it why a stage waits.
///
/// A snapshot is a copy. It costs O(chunks * microbatches), so no path of a task takes one.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <rrfp/core/event.hpp>
#include <rrfp/core/memory.hpp>

namespace rrfp {

/// Ranks of a stage as bits; a stage has at most 64.
using rank_set = std::uint64_t;

/// The ranks 0..ranks-1, 1 <= ranks <= 64.
constexpr rank_set all_ranks(std::uint32_t ranks) { return ~rank_set{0} >> (64 - ranks); }

struct running_launch {
  launch launched;
  rank_set behind = 0;  ///< ranks that have not finished it

  bool operator==(const running_launch&) const = default;
};

/// One microbatch on one chunk. Done means finished on every rank.
struct chunk_progress {
  rank_set activation = 0;     ///< ranks that have the input of F
  rank_set gradient = 0;       ///< ranks that have the input of B or BW
  bool forward_early = false;  ///< F has run early
  bool forward_done = false;
  bool backward_done = false;
  bool weight_done = false;  ///< the weight gradient is folded

  bool operator==(const chunk_progress&) const = default;
};

struct stage_snapshot {
  step_id step;
  std::uint32_t microbatches = 0;
  /// In the order of their numbers.
  std::vector<running_launch> running;
  /// The last decision was to wait; `waiting` says for what.
  bool waits = false;
  wait waiting;
  /// The limit that keeps the head of a wait for memory from running.
  memory_bound bound = memory_bound::none;
  memory_use memory;
  std::vector<microbatch_id> holders;    ///< of slots
  std::uint32_t ready = 0;               ///< tasks that could be launched if they fit in memory
  std::uint32_t remaining = 0;           ///< tasks of the step not launched yet
  std::vector<chunk_progress> progress;  ///< by pipeline_shape::index()

  /// Of a microbatch that the step does not have: nothing has happened. Another stage may be in
  /// a step with more of them.
  const chunk_progress& progress_of(microbatch_id mb, chunk_id chunk) const {
    static constexpr chunk_progress nothing;
    const auto at = std::size_t{chunk.value()} * microbatches + mb.value();
    return mb.value() < microbatches && at < progress.size() ? progress[at] : nothing;
  }
  bool is_done(const task& t) const;
  /// Whether the task, done or run early, has left its output to the next stage.
  bool has_sent_output_of(const task& t) const;
  /// The task of the same microbatch and chunk that `t` waits for: F before B and BW, B before W.
  std::optional<task> own_task_before(const task& t) const;
};

}  // namespace rrfp

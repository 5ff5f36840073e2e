/// Where the wall time of stages went, and what they held meanwhile.
///
/// All sums are of whole nanoseconds: over the ranks of a stage, busy time by kind and standstill
/// by cause add up to its wall time exactly.
#pragma once

#include <rrfp/report/timeline.hpp>

namespace rrfp::report {

/// Sums over one or more ranks.
struct breakdown {
  std::uint32_t ranks = 0;
  std::uint64_t tasks = 0;
  /// The window, times `ranks`.
  nanoseconds wall = 0;
  /// By task_kind; injected delay included.
  std::array<nanoseconds, task_kinds> busy_by_kind{};
  /// Part of the busy time that was injected.
  nanoseconds delay = 0;
  /// By standstill.
  std::array<nanoseconds, standstills> idle_by_cause{};
  /// Part of activation and gradient in which other work was ready.
  nanoseconds other_ready = 0;

  nanoseconds busy() const;
  nanoseconds idle() const;
  breakdown& operator+=(const breakdown& other);
};

breakdown breakdown_of(const lane& l, nanoseconds wall);

/// One for each stage of each replica, in the order of the lanes.
std::vector<breakdown> breakdown_by_stage(const timeline& t);

/// What a stage held from `at` on: known at the ends of tasks only.
struct held {
  nanoseconds at = 0;
  /// Microbatches.
  std::int64_t slots = 0;
  /// Activations of all ranks of the stage together.
  std::int64_t bytes = 0;

  bool operator==(const held&) const = default;
};

/// In order of time; only changes.
std::vector<held> held_over_time(const timeline& t, replica_id r, stage_id s);

}  // namespace rrfp::report

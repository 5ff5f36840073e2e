/// The wall time of stages by task kind and by cause of idle time, and the memory that they held.
///
/// All sums are in whole nanoseconds: over the ranks of a stage, busy time by kind and idle time by
/// cause add up exactly to its wall time.
#pragma once

#include <rrfp/report/timeline.hpp>

namespace rrfp::report {

/// Sums over one or more ranks.
struct breakdown {
  std::uint32_t ranks = 0;
  std::uint64_t tasks = 0;
  /// The window times `ranks`.
  nanoseconds wall = 0;
  /// By task_kind, including injected delay.
  std::array<nanoseconds, task_kinds> busy_by_kind{};
  /// The injected part of the busy time.
  nanoseconds delay = 0;
  /// By idle_cause.
  std::array<nanoseconds, idle_causes> idle_by_cause{};
  /// The part of `activation` and `gradient` in which another task was ready.
  nanoseconds other_ready = 0;

  nanoseconds busy() const;
  nanoseconds idle() const;
  breakdown& operator+=(const breakdown& other);
};

breakdown breakdown_of(const lane& l, nanoseconds wall);

/// One entry per stage of each replica, in the order of the lanes.
std::vector<breakdown> breakdown_by_stage(const timeline& t);

/// The figures of the table of runs that rrfp-node prints, over the steps of a timeline.
struct run_figures {
  /// Median time of a step, with the gradient exchange and the update, without evaluations. Of a
  /// trace without recorded steps: from the first task of a step to its last.
  double step_ms = 0;
  /// Share of the time without a task, from the first task of each step to its last.
  double bubble = 0;
  std::int64_t slots_peak = 0;
  /// Most activation memory of a rank. Of a trace without recorded steps: at the ends of tasks.
  std::int64_t bytes_peak = 0;
};

run_figures figures_of(const timeline& t);

/// The memory that a stage held from `at` on. Known only at the ends of tasks.
struct held {
  nanoseconds at = 0;
  /// Number of microbatches.
  std::int64_t slots = 0;
  /// Activation bytes of the rank of the stage that held most.
  std::int64_t bytes = 0;

  bool operator==(const held&) const = default;
};

/// The changes, in order of time.
std::vector<held> held_over_time(const timeline& t, replica_id r, stage_id s);

}  // namespace rrfp::report

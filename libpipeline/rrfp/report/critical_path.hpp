/// The critical path of a run: from the end of the last task back to the start of the window, from
/// each task to the one that it waited for.
///
/// A task waited for the sender of its input if a wait of its stage ended with the decision for it,
/// or if the sender ended after the previous launch; otherwise for the previous launch on its stage
/// (on the rank that ended last). If nothing precedes it in the step, it waited for the step to
/// begin, and the step for the last task of the previous step. The parts of the path add up to the
/// window, to the nanosecond: compute (by stage), transfer (message, mailbox and decision, from the
/// sender's end to the decision), launch gaps (from there to the start of the task), the start of
/// steps, and the time between steps.
///
/// If the clocks of nodes differ, a sender may seem to end after its receiver began. Then only the
/// sender's time before that begin counts, and the transfer is 0.
#pragma once

#include <rrfp/report/timeline.hpp>

namespace rrfp::report {

/// What a task of the path waited for.
enum class predecessor : std::uint8_t { sender, previous_launch, step_begin };

struct path_task {
  const traced_task* task = nullptr;
  predecessor why = predecessor::step_begin;
};

struct path_share {
  std::uint64_t tasks = 0;
  std::array<nanoseconds, task_kinds> compute_by_kind{};
  /// The injected part of the compute time.
  nanoseconds delay = 0;

  nanoseconds compute() const;
};

struct critical_path {
  /// In order of time.
  std::vector<path_task> tasks;
  /// Over all replicas.
  std::vector<path_share> by_stage;
  nanoseconds transfer = 0;
  nanoseconds launch_gap = 0;
  nanoseconds step_begin = 0;
  nanoseconds between_steps = 0;

  /// The sum of all parts, which is the window.
  nanoseconds length() const;
};

critical_path find_critical_path(const timeline& t);

}  // namespace rrfp::report

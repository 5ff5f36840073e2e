/// What the run's duration was made of: from the end of the last task back to the begin of the
/// window, from each task to the one that it waited for.
///
/// A task waited for the sender of its input if a wait of its stage ended with the decision for it,
/// or if the sender ended after the launch before it; else for the launch before it on its stage
/// (on the rank that ended last). Nothing before it in the step: for the step to begin, and that
/// for the last task of the step before. The time of the path is the window's, to the nanosecond,
/// as compute (by stage), transfer (from the sender's end to the decision: message, mailbox,
/// decision), launch gaps (to the task's begin), the begin of steps, and the time between steps.
///
/// Where clocks of nodes disagree, a sender may seem to end after the receiver began: then only its
/// time before that begin counts, and the transfer counts nothing.
#pragma once

#include <rrfp/report/timeline.hpp>

namespace rrfp::report {

/// Why a task of the path began when it did.
enum class held_by : std::uint8_t { sender, launch_before, step_begin };

struct path_task {
  const traced_task* task = nullptr;
  held_by why = held_by::step_begin;
};

struct path_share {
  std::uint64_t tasks = 0;
  std::array<nanoseconds, task_kinds> compute_by_kind{};
  /// Part of the compute that was injected.
  nanoseconds delay = 0;

  nanoseconds compute() const;
};

struct critical_path {
  /// In order of time.
  std::vector<path_task> tasks;
  /// Replicas together.
  std::vector<path_share> by_stage;
  nanoseconds transfer = 0;
  nanoseconds launch_gap = 0;
  nanoseconds step_begin = 0;
  nanoseconds between_steps = 0;

  /// The sum of all parts: the window.
  nanoseconds length() const;
};

critical_path find_critical_path(const timeline& t);

}  // namespace rrfp::report

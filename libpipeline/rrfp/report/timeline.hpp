/// The chosen steps of a run in order of time: the tasks of each rank, and the causes of its idle
/// time.
///
/// The window begins with the first decision or wait of the first step on any stage, and ends with
/// the last task of the last step. It is the wall time of every rank. A rank is busy, or idle for
/// one of these causes:
///
///   activation     no task could be launched; the next one needs an activation of the previous
///                  stage (in the order of the model, so with chunks it may be any stage)
///   gradient       the same for an output gradient of the next stage
///   memory         a task was ready, but no slot was free for it
///   ranks behind   another rank of the stage was later: it had not finished the task, or an input
///                  had not arrived on it
///   launch gap     a task was ready, but the rank had not begun it: from the end of the previous
///                  task, or from the decision if nothing was ready, to the start of the task.
///                  Also all time for which the recorder gave no other cause
///   head           from the start of the step to the decision for the rank's first task (fill)
///   tail           from the end of the rank's last task to the end of the step (drain)
///   between steps  from the end of a step to the start of the next, equal on every rank: gradient
///                  exchange, optimizer, the job's barrier
///
/// In in-order mode, a wait for the next task of the sequence counts as a wait for the input of
/// that task, and also in `other_ready` if another task was ready. A collective inside a task,
/// including the waiting in it, is busy time.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include <rrfp/report/trace.hpp>

namespace rrfp::report {

enum class idle_cause : std::uint8_t {
  activation,
  gradient,
  memory,
  ranks_behind,
  launch_gap,
  head,
  tail,
  between_steps,
};

inline constexpr std::size_t idle_causes = 8;

/// "activation", "gradient", "memory", "ranks behind", "launch gap", "head", "tail", "between
/// steps".
std::string_view name(idle_cause s);

/// An interval in which a rank was idle; intervals do not overlap.
struct gap {
  idle_cause why = idle_cause::launch_gap;
  nanoseconds begin = 0;
  nanoseconds end = 0;
  /// The task that was waited for, if recorded (activation, gradient, memory, ranks behind).
  std::optional<task> head = std::nullopt;
  /// Another task was ready, but in-order mode followed its sequence.
  bool other_ready = false;
};

/// One rank over the window.
struct lane {
  replica_id replica;
  stage_id stage;
  rank_id rank;
  /// Tasks of the chosen steps, in order of time; owned by the run.
  std::vector<const traced_task*> tasks;
  /// All time of the window without a task, in order.
  std::vector<gap> gaps;
};

struct step_span {
  step_id step;
  nanoseconds begin = 0;
  nanoseconds end = 0;
};

/// Refers to the run, which must outlive it.
struct timeline {
  const traced_run* run = nullptr;
  /// At least one, in order, not overlapping.
  std::vector<step_span> steps;
  /// Every rank of every stage, ordered by replica, stage, rank.
  std::vector<lane> lanes;

  nanoseconds begin() const { return steps.front().begin; }
  nanoseconds end() const { return steps.back().end; }
  nanoseconds wall() const { return end() - begin(); }

  /// Index of a rank in `lanes`; the ranks of one stage are contiguous.
  std::size_t number_of(replica_id r, stage_id s, rank_id rank) const;
};

/// "stage 3", or "replica 1 stage 3" if there are several replicas.
std::string stage_name(const traced_run& run, replica_id r, stage_id s);

/// The steps of which a run has tasks, in order.
std::vector<step_id> steps_of(const traced_run& run);

/// Whether the run has any of the steps first..last; the error names the steps that it has.
status has_steps(const traced_run& run, step_id first, step_id last);

/// A representative step among first..last: of the steps that every run has (only complete ones, if
/// there are any), the one whose durations are closest to the median of each run, relative to it.
/// For one run, this is the median step. Nothing if the runs share no step.
std::optional<step_id> typical_step(const std::vector<traced_run>& runs, step_id first,
                                    step_id last);

/// The timeline of those steps among first..last that the run has. Error: it has none of them.
result<timeline> make_timeline(const traced_run& run, step_id first, step_id last);

}  // namespace rrfp::report

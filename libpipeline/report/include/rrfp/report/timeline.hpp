/// The chosen steps of a run, put in order: who ran what when, and what lay between.
///
/// The window begins when the first of the steps began anywhere in the run (the first decision or
/// wait of it, on any stage) and ends with the end of the last one's last task. Every rank is
/// followed over the whole window, so its wall time is the window, and it is busy or it stands
/// still:
///
///   activation     nothing could be launched; the next task in the end needs an activation of the
///                  stage before (in the order of the model, so with chunks it may be any stage)
///   gradient       the same, for an output gradient of the stage behind
///   memory         work was ready, but no slot was free for it
///   ranks behind   this rank was done, another rank of its stage was not yet
///   launch gap     work was ready but the rank had not begun: from the end of the task before, or
///   from
///                  the decision if nothing was ready, to the begin of the task. What the recorder
///                  gave no other cause for counts here
///   head           from the begin of the step to the decision for the rank's first task in it:
///   fill tail           from the end of the rank's last task in the step to the end of the step:
///   drain between steps  from the end of a step to the begin of the next, the same on every rank:
///   exchange
///                  of gradients, optimizer, the job's barrier
///
/// Waits of in-order mode for the sequence's next task count as waits for that task's input, and
/// are summed in `other_ready` as well: a part in which other work was ready. A collective inside a
/// task, and the waiting in it, is busy time.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include <rrfp/report/trace.hpp>

namespace rrfp::report {

enum class standstill : std::uint8_t {
  activation,
  gradient,
  memory,
  ranks_behind,
  launch_gap,
  head,
  tail,
  between_steps,
};

inline constexpr std::size_t standstills = 8;

/// "activation", "gradient", "memory", "ranks behind", "launch gap", "head", "tail", "between
/// steps".
std::string_view name(standstill s);

/// A piece of a rank's time in which it ran nothing; no two overlap.
struct gap {
  standstill why = standstill::launch_gap;
  nanoseconds begin = 0;
  nanoseconds end = 0;
  /// What was waited for, if the recorder says so: activation, gradient and memory.
  std::optional<task> head = std::nullopt;
  /// Other work was ready; the sequence was obeyed.
  bool other_ready = false;
};

/// One rank over the window.
struct lane {
  replica_id replica;
  stage_id stage;
  rank_id rank;
  /// Of the chosen steps, in order of time; they live in the run.
  std::vector<const traced_task*> tasks;
  /// All the time of the window that no task takes, in order.
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

  /// Where a rank lies in `lanes`; those of one stage follow each other.
  std::size_t number_of(replica_id r, stage_id s, rank_id rank) const;
};

/// The steps that a run has tasks of, in order.
std::vector<step_id> steps_of(const traced_run& run);

/// An error that names the steps there are, if none of first..last is among them.
status has_steps(const traced_run& run, step_id first, step_id last);

/// The step that stands for all: of those of first..last that every run has, whole ones if there
/// are any, the one whose durations are nearest to the median of each run, relative to it. For one
/// run it is the median step. Nothing if the runs share no step.
std::optional<step_id> typical_step(const std::vector<traced_run>& runs, step_id first,
                                    step_id last);

/// The steps first..last, as far as the run has them; an error if it has none of them.
result<timeline> make_timeline(const traced_run& run, step_id first, step_id last);

}  // namespace rrfp::report

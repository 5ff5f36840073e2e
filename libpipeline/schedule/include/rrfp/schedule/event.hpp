/// What a stage core is told, and what it answers.
///
/// Everything that may differ from run to run (arrival times, durations) enters as the order of
/// these events; the core has no clock of its own. The same events give the same actions.
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include <rrfp/schedule/task.hpp>

namespace rrfp {

// ---- events

/// A new step: every task is to do again. Legal only when the step before is complete or aborted.
struct step_began {
  step_id step;
  /// Bytes that each microbatch holds on this stage, indexed by microbatch; empty: nothing counted.
  std::vector<std::uint64_t> slot_bytes;

  bool operator==(const step_began&) const = default;
};

/// The external input of a task is on one rank: the activation (or, on the first virtual stage, the
/// data) of an F, the output gradient of a B or BW. Inputs that the stage makes itself are not
/// told.
struct input_arrived {
  task_kind kind = task_kind::forward;  ///< forward or backward; backward stands for BW too
  microbatch_id mb;
  chunk_id chunk;
  rank_id rank;

  bool operator==(const input_arrived&) const = default;
};

/// One rank has finished a launch.
struct task_finished {
  launch_seq seq;
  rank_id rank;

  bool operator==(const task_finished&) const = default;
};

/// Everything known so far has been told: choose.
struct decide {
  bool operator==(const decide&) const = default;
};

/// Launch nothing more in this step.
struct abort {
  bool operator==(const abort&) const = default;
};

using event = std::variant<step_began, input_arrived, task_finished, decide, abort>;

// ---- actions

/// Why the arbiter took this task and no other.
enum class choice : std::uint8_t {
  hint_head,          ///< the hint's first remaining task was ready
  skipped_not_ready,  ///< tasks that the hint ranks before it were not ready
  memory_bound,       ///< a task that the hint ranks before it was ready but had no slot
  only_choice,        ///< nothing else was ready
};

std::string_view name(choice c);

struct reason {
  choice why = choice::hint_head;
  /// How many remaining tasks of the same lane the hint ranks before the chosen one.
  std::uint32_t skipped = 0;

  bool operator==(const reason&) const = default;
};

/// Weight gradients that a launch computes and folds: `count` microbatches from `first` on. Folding
/// follows the numbers of the microbatches on every chunk, so a BW that runs before its turn folds
/// nothing, and the one that closes the gap folds those that waited too.
struct fold_range {
  microbatch_id first;
  std::uint32_t count = 0;

  bool operator==(const fold_range&) const = default;
};

/// Run this task on every rank of the stage, after all launches with smaller numbers.
struct launch {
  launch_seq seq;
  task what;
  reason why;
  fold_range folds;

  bool operator==(const launch&) const = default;
};

enum class wait_cause : std::uint8_t {
  input,     ///< nothing is ready; the head's input is not here
  in_order,  ///< other work is ready, but the sequence's next task is not (in-order mode)
  memory,    ///< work is ready, but no slot is free for it
  complete,  ///< every task of the step is done
};

std::string_view name(wait_cause c);

/// Nothing can run now.
struct wait {
  wait_cause why = wait_cause::complete;
  /// The task that the hint would run first or, when an input is missing, the task of this stage
  /// that it waits for in the end; meaningless when complete.
  task head;

  bool operator==(const wait&) const = default;
};

using action = std::variant<launch, wait>;

}  // namespace rrfp

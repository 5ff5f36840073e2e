/// The events that a stage core receives and the actions that it returns.
///
/// Whatever varies between runs (arrival times, durations) reaches the core only as the order of
/// these events: the core has no clock. Equal events give equal actions.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include <rrfp/core/task.hpp>

namespace rrfp {

// ---- events

/// A step begins: all its tasks are pending. Legal only when the previous step is complete or
/// aborted.
struct step_began {
  step_id step;
  /// Bytes that each microbatch holds on this stage, by microbatch; empty: bytes are not counted.
  std::vector<std::uint64_t> slot_bytes = {};
  /// Launches into which each W is divided in this step; 0: as stage_config says.
  std::uint32_t weight_pieces = 0;
  /// Nothing: as many as the shape of the stage says. 0: the stage has no task in this step.
  std::optional<std::uint32_t> microbatches = std::nullopt;

  bool operator==(const step_began&) const = default;
};

/// The external input of a task has arrived on one rank: the activation of an F (on the first
/// virtual stage, its data) or the output gradient of a B or BW. No event reports inputs that the
/// stage produces itself.
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

/// All events known so far are recorded; the core now chooses.
struct decide {
  bool operator==(const decide&) const = default;
};

/// Launch no further task in this step.
struct abort {
  bool operator==(const abort&) const = default;
};

using event = std::variant<step_began, input_arrived, task_finished, decide, abort>;

// ---- actions

/// Why the arbiter chose this task.
enum class choice : std::uint8_t {
  hint_head,          ///< the hint's first remaining task was ready
  skipped_not_ready,  ///< tasks that the hint ranks before it were not ready
  memory_bound,       ///< a task that the hint ranks before it was ready but got no slot
  only_choice,        ///< no other task was ready
};

std::string_view name(choice c);

struct reason {
  choice why = choice::hint_head;
  /// Number of remaining tasks in the same lane that the hint ranks before the chosen one.
  std::uint32_t skipped = 0;

  bool operator==(const reason&) const = default;
};

/// The weight gradients that a launch computes and folds: `count` microbatches starting at `first`.
/// On every chunk, folding follows the microbatch numbers. A BW that runs before its turn therefore
/// folds nothing; the launch that closes the gap also folds the ones that waited.
struct fold_range {
  microbatch_id first;
  std::uint32_t count = 0;

  bool operator==(const fold_range&) const = default;
};

/// A part of a W: piece `number` of `count`. The pieces of a W run in order, and the next W of the
/// chunk begins after the last of them, so each gradient is summed in the order of the
/// microbatches.
struct task_piece {
  std::uint32_t number = 0;
  std::uint32_t count = 1;

  bool is_last() const { return number + 1 == count; }
  /// This piece's share of `whole`; the shares of all pieces sum up to it.
  std::int64_t share_of(std::int64_t whole) const {
    return whole * (number + 1) / count - whole * number / count;
  }
  bool operator==(const task_piece&) const = default;
};

/// What an F sends and keeps.
enum class forward_pass : std::uint8_t {
  once,   ///< sends its output and keeps the activations that B needs
  early,  ///< before memory is free: sends its output and keeps only its input
  again,  ///< after an early pass: keeps the activations and sends nothing
};

std::string_view name(forward_pass p);

/// Run this task on every rank of the stage, after all launches with smaller sequence numbers.
struct launch {
  launch_seq seq;
  task what;
  reason why;
  fold_range folds;  ///< of a W in pieces: with the last one
  task_piece piece = {};
  forward_pass pass = forward_pass::once;  ///< of an F

  /// Whether nothing of the task is left after this launch.
  bool ends_task() const { return piece.is_last() && pass != forward_pass::early; }
  bool operator==(const launch&) const = default;
};

enum class wait_cause : std::uint8_t {
  input,     ///< nothing is ready; the input of the head task is missing
  in_order,  ///< other tasks are ready, but the next task of the sequence is not (in-order mode)
  memory,    ///< a task is ready, but no slot is free for it
  ranks,     ///< nothing is ready; the input of the head task is on some ranks of the stage only
  complete,  ///< every task of the step is done
};

inline constexpr wait_cause all_wait_causes[] = {wait_cause::input, wait_cause::in_order,
                                                 wait_cause::memory, wait_cause::ranks,
                                                 wait_cause::complete};
inline constexpr std::size_t wait_causes = std::size(all_wait_causes);

std::string_view name(wait_cause c);

/// No task can be launched now.
struct wait {
  wait_cause why = wait_cause::complete;
  /// The task that the hint would run first. If an input is missing: the task of this stage that
  /// needs it, at the end of the chain of dependencies. Meaningless when complete.
  task head;

  bool operator==(const wait&) const = default;
};

using action = std::variant<launch, wait>;

}  // namespace rrfp

/// The simulator: many stage cores on one virtual clock.
///
/// It stands in for compute and transport and drives the same stage_core as the runtime: it
/// delivers arrivals and finishes in the order that the cost model gives. All events of one instant
/// are delivered before any stage decides. It uses no randomness: equal plans and costs give equal
/// runs, to the nanosecond.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/core/stage_core.hpp>

namespace rrfp::simulate {

/// Virtual time and durations, in nanoseconds.
using nanoseconds = std::int64_t;

struct plan;

/// The durations of tasks and messages. Implementations must be pure functions of their arguments.
class cost_model {
 public:
  virtual ~cost_model() = default;
  /// Time for which the task occupies its stage.
  virtual nanoseconds compute(step_id step, stage_id stage, const task& t) const = 0;
  /// Time from the end of the producing task until the input of `t` (F or B, as in input_arrived)
  /// reaches virtual stage `to`. Never called for two virtual stages of the same stage: their
  /// transfers take no time.
  virtual nanoseconds link(step_id step, virtual_stage_id to, const task& t) const = 0;
  /// The same for one of the ranks of a stage, if a plan has several.
  virtual nanoseconds compute_of_rank(step_id step, stage_id stage, rank_id, const task& t) const {
    return compute(step, stage, t);
  }
  virtual nanoseconds link_of_rank(step_id step, virtual_stage_id to, rank_id,
                                   const task& t) const {
    return link(step, to, t);
  }
  /// Whether every duration that the plan needs is known; run() checks this before it starts.
  virtual status covers(const plan&) const { return success(); }
};

/// asynchronous: a stage hands its result over and continues; the message arrives later.
///
/// blocking: send and receive are paired, as in frameworks with fixed schedules (Megatron's paired
/// send/receive). After a task, a stage posts its send together with the receive that its next F or
/// B needs. A message starts when both ends are posted, and the sender is blocked until it arrives.
/// Only for in-order mode without lookahead.
enum class transport : std::uint8_t { asynchronous, blocking };

std::string_view name(transport t);

/// A rule by which stages decide, in place of the cores' own, to compare the two. It gets the
/// events that a core would get, and passes them to the core itself.
class decider {
 public:
  virtual ~decider() = default;
  /// In place of core.on(e). The actions stay valid until the next call for the stage.
  virtual std::span<const action> on(stage_id, stage_core&, const event&, nanoseconds now) = 0;
  /// Called after on() has returned actions. The time after which the stage decides again even
  /// without an event; nullopt: only an event makes it decide.
  virtual std::optional<nanoseconds> decides_again_after(stage_id) = 0;
};

/// Bytes that a microbatch holds on a stage.
using microbatch_bytes = std::function<std::uint64_t(step_id, stage_id, microbatch_id)>;

struct plan {
  pipeline_shape shape;
  dispatch_rule rule;
  std::uint32_t lookahead = 0;
  memory_limit limit;
  microbatch_bytes slot_bytes;  ///< empty: bytes are not counted
  std::uint64_t steps = 1;
  step_id first;  ///< of the steps
  /// The number of microbatches of a step, at least 1; empty: that of the shape.
  std::function<std::uint32_t(step_id)> microbatches;
  /// One limit per stage; empty: `limit` for all stages.
  std::vector<memory_limit> limits;
  transport messages = transport::asynchronous;
  /// Time that each launch adds to its task.
  nanoseconds launch_cost = 0;
  /// Ranks of a stage, each with times and arrivals of its own; 1: a stage is one device.
  std::uint32_t ranks = 1;
  /// Decides in place of the cores; null: they decide for themselves.
  decider* decides = nullptr;
};

/// One executed task: from its begin on the first rank to its end on the last.
struct task_span {
  step_id step;
  stage_id stage;
  launch what;
  nanoseconds begin = 0;
  nanoseconds end = 0;
};

/// An interval in which a stage was idle, and the cause that the core reported.
struct idle_span {
  step_id step;
  stage_id stage;
  wait why;
  nanoseconds begin = 0;
  nanoseconds end = 0;
};

/// Callbacks during a run; each has an empty default. Times count from the start of the run.
class observer {
 public:
  virtual ~observer() = default;
  /// Called before the core receives the event.
  virtual void on_event(stage_id, nanoseconds, const event&) {}
  /// The actions that a `decide` returned, if any.
  virtual void on_actions(stage_id, nanoseconds, std::span<const action>) {}
  /// Called at the end of each task.
  virtual void on_task(const task_span&) {}
  /// Idle intervals, including those before the first and after the last task of a step
  /// (`complete`). An interval is split where the cause changes.
  virtual void on_idle(const idle_span&) {}
};

/// What a stage did. `busy`, `behind` and `blocked` are means over its ranks.
struct stage_report {
  nanoseconds busy = 0;
  /// From the end of a task on one rank to its end on the last.
  nanoseconds behind = 0;
  /// Idle time between the stage's first and last task of each step, and the time before its first
  /// task in which its ranks waited for each other.
  nanoseconds idle = 0;
  /// `idle` by cause; index: wait_cause.
  nanoseconds idle_by_cause[wait_causes] = {};
  /// Other time before the first and after the last task of each step.
  nanoseconds head = 0;
  nanoseconds tail = 0;
  /// Blocking transport: time during which the result of a finished task was not yet received. Not
  /// part of any sum above.
  nanoseconds blocked = 0;
  memory_use memory;  ///< peaks over all steps
  sequence order;     ///< the tasks of the last step in the order in which they ran
};

struct step_report {
  nanoseconds makespan = 0;
  /// No schedule of these tasks can be shorter: the busiest stage with its shortest head and tail,
  /// or the slowest microbatch on its own. Equal for all policies that split backward alike.
  nanoseconds lower_bound = 0;
};

struct report {
  std::vector<step_report> steps;
  std::vector<stage_report> stages;
  nanoseconds makespan = 0;     ///< sum over the steps
  nanoseconds lower_bound = 0;  ///< sum over the steps
  std::uint64_t events = 0;     ///< events delivered to cores, including `decide`
  /// 1 - busy / (stages * makespan).
  double bubble_fraction = 0;
};

/// Runs the steps one after another with a barrier between them. If the stages stall with tasks
/// left (an infeasible sequence), the error names each stage and what it waits for.
result<report> run(const plan& p, const cost_model& costs, observer* watcher = nullptr);

/// The order in which each stage runs its tasks in one step with these costs, which should be free
/// of disturbances. Turns a policy without a fixed schedule into one.
result<std::vector<sequence>> nominal_sequences(const plan& p, const cost_model& costs);

}  // namespace rrfp::simulate

/// Virtual time: many stage cores, one clock.
///
/// The simulator plays the part of compute and transport for the same stage_core that the runtime
/// drives: it tells arrivals and finishes in the order in which the cost model makes them happen.
/// Events of the same instant are all told before any stage decides. No randomness of its own: the
/// same plan and costs give the same run, to the nanosecond.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/schedule/stage_core.hpp>

namespace rrfp::simulate {

/// Virtual time and durations, in nanoseconds.
using nanoseconds = std::int64_t;

struct plan;

/// How long things take. Implementations must be pure functions of their arguments.
class cost_model {
 public:
  virtual ~cost_model() = default;
  /// Time that the task occupies its stage.
  virtual nanoseconds compute(step_id step, stage_id stage, const task& what) const = 0;
  /// Time from the end of the producing task until the input of `what` (F or B, as in
  /// input_arrived) is at virtual stage `to`.
  /// Not asked between two virtual stages of the same stage: what stays takes no time.
  virtual nanoseconds link(step_id step, virtual_stage_id to, const task& what) const = 0;
  /// Whether every duration that the plan will ask for is known; run() asks before it begins.
  virtual status covers(const plan&) const { return success(); }
};

/// asynchronous: a stage hands its result over and goes on; it arrives when it arrives.
///
/// blocking: send and receive meet, as in frameworks with fixed schedules (Megatron's paired
/// send/receive). After a task a stage posts its send together with the receive that its next F or
/// B needs; a message travels once both ends have posted; the sender does nothing until it has
/// arrived. Only for in-order mode without lookahead.
enum class transport : std::uint8_t { asynchronous, blocking };

std::string_view name(transport t);

using policy_factory = std::function<std::unique_ptr<policy>(stage_id)>;

struct plan {
  pipeline_shape shape;
  dispatch_mode mode = dispatch_mode::ready;
  std::uint32_t lookahead = 0;
  memory_limit limit;
  /// In in-order mode the policies must have one lane (a sequence).
  policy_factory make_policy;
  /// Bytes that a microbatch holds on a stage; empty: not counted.
  std::function<std::uint64_t(stage_id, microbatch_id)> slot_bytes;
  std::uint64_t steps = 1;
  /// One for each stage; empty: `limit` for all.
  std::vector<memory_limit> limits;
  transport messages = transport::asynchronous;
};

/// One task as it ran.
struct task_span {
  step_id step;
  stage_id stage;
  launch what;
  nanoseconds begin = 0;
  nanoseconds end = 0;
};

/// One time that a stage stood still, and why the core said it did.
struct idle_span {
  step_id step;
  stage_id stage;
  wait why;
  nanoseconds begin = 0;
  nanoseconds end = 0;
};

/// Told as the run goes; every method may be left alone. Times count from the begin of the run.
class observer {
 public:
  virtual ~observer() = default;
  /// Before the core is told.
  virtual void on_event(stage_id, nanoseconds, const event&) {}
  /// What a `decide` answered, if anything.
  virtual void on_actions(stage_id, nanoseconds, std::span<const action>) {}
  /// At the end of each task.
  virtual void on_task(const task_span&) {}
  /// Gaps, and the times before the first and after the last task of a step (`complete`), each cut
  /// where the reason changes.
  virtual void on_idle(const idle_span&) {}
};

struct stage_report {
  nanoseconds busy = 0;
  /// Gap time between the stage's first and last task of each step.
  nanoseconds idle = 0;
  /// The same by what the stage waited for; index: wait_cause.
  nanoseconds idle_by_cause[4] = {};
  /// Time before the first and after the last task of each step.
  nanoseconds head = 0;
  nanoseconds tail = 0;
  /// Blocking transport: time in which a finished task's result was not received yet; in none of
  /// the above.
  nanoseconds blocked = 0;
  memory_use memory;  ///< peaks over all steps
  sequence order;     ///< what ran in the last step, in order
};

struct step_report {
  nanoseconds makespan = 0;
  /// No schedule of these tasks can be shorter: the busiest stage and its shortest head and tail,
  /// or the slowest microbatch all alone. The same for every policy that splits backward alike.
  nanoseconds lower_bound = 0;
};

struct report {
  std::vector<step_report> steps;
  std::vector<stage_report> stages;
  nanoseconds makespan = 0;     ///< sum over the steps
  nanoseconds lower_bound = 0;  ///< sum over the steps
  std::uint64_t events = 0;     ///< events told to cores, `decide` included
  /// 1 - busy / (stages * makespan).
  double bubble_fraction = 0;
};

/// Steps run one after another with a barrier between. An error if the stages come to stand with
/// work left (an infeasible sequence): it names who waits for what.
result<report> run(const plan& what, const cost_model& costs, observer* watcher = nullptr);

/// The order in which each stage runs its tasks in one step with these costs, which should be free
/// of disturbance: how a policy that is not a fixed schedule becomes one.
result<std::vector<sequence>> nominal_sequences(const plan& what, const cost_model& costs);

}  // namespace rrfp::simulate

/// The core of the runtime: it decides which task a stage runs next.
///
/// `on(event) -> actions` is the only entry point. The core records events as they come. On
/// `decide` it fills the stage's launch queue (one running launch and `lookahead` more) with the
/// best-ranked tasks that are ready and fit into memory, or reports what the stage waits for.
///
/// Invariants: each task is launched once per step (an F twice if it ran early, a W once for each
/// piece), and only when its inputs are on every rank of the stage. Launches run in the order of
/// their numbers, so a launch finds the results of earlier launches of its stage. Each chunk folds
/// weight gradients in the order of the microbatch numbers, whatever order the backwards ran in. In
/// ready mode the stage never waits while a ready task fits.
///
/// The actor runtime and the simulator drive the same class, and a recorded run replayed through it
/// gives the same actions. No clock, thread, file or random source. Not thread-safe. An event that
/// breaks the protocol (a second arrival, the finish of a task never launched) aborts the process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>

#include <rrfp/core/event.hpp>
#include <rrfp/core/memory.hpp>
#include <rrfp/core/placement.hpp>
#include <rrfp/core/policy.hpp>

namespace rrfp {

struct stage_snapshot;

/// in_order executes the policy's ranking and waits for each task (one lane only). ready launches
/// the best-ranked ready task and never waits for a task that is not ready.
enum class dispatch_mode : std::uint8_t { in_order, ready };

std::string_view name(dispatch_mode mode);

struct stage_config {
  /// `shape.microbatches` is the number for each step_began that does not give its own.
  pipeline_shape shape;
  stage_id stage;
  /// Number of tensor-parallel ranks whose arrivals and finishes are counted, 1..64.
  std::uint32_t ranks = 1;
  /// Maximum number of launches queued behind the running one.
  std::uint32_t lookahead = 0;
  dispatch_mode mode = dispatch_mode::ready;
  memory_limit limit;
  /// Ready mode: launches into which each W is divided; 0: as many as the policy wants. In-order
  /// mode does not divide W.
  std::uint32_t weight_pieces = 1;
  /// Ready mode without a limit of activations: maximum number of F that have run early and not yet
  /// again. While nothing else can run, an F that waits for a slot runs without one: the
  /// next stage gets its input, and F runs again once it has a slot. Not on the last virtual stage.
  /// This cannot deadlock, because slots are taken and freed as if the early F had not run. (A
  /// limit of activations relies on all F of a microbatch running before its first B.)
  std::uint32_t early_forwards = 0;
  /// Ready mode without early forwards: the F of each chunk run in the order of the microbatch
  /// numbers, for a forward that changes buffers. This cannot deadlock either: an F waits for older
  /// microbatches alone, and the oldest microbatch of the job for none.
  bool forwards_in_order = false;
  /// As in dispatch_rule.
  bool renews_policy = false;
};

/// Thrown if the policy that a job names is not defined for the number of microbatches of a step.
class undefined_policy : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Makes the policy of a stage for a shape. Throws undefined_policy.
using policy_factory = std::function<std::unique_ptr<policy>(const pipeline_shape&, stage_id)>;

class stage_core {
 public:
  /// `make_policy` is called here, in each step whose number of microbatches differs from that of
  /// the step before, and with renews_policy in every step. on() passes its exceptions on; the step
  /// has not begun then.
  stage_core(stage_config config, policy_factory make_policy);
  stage_core(stage_core&&) noexcept;
  stage_core& operator=(stage_core&&) noexcept;
  ~stage_core();

  /// The actions stay valid until the next call. Only `decide` returns any. `wait` is returned
  /// alone and only while no launch is outstanding.
  std::span<const action> on(const event& e);

  const stage_config& config() const;
  /// The number of microbatches of this step.
  std::uint32_t microbatches() const;
  const policy& hint() const;
  const memory_use& memory() const;
  /// The task that `decide` would launch now; nothing: none.
  std::optional<task> next() const;
  /// Launches not yet finished on every rank.
  std::uint32_t outstanding() const;
  /// Tasks of this step that are not launched yet.
  std::uint32_t remaining() const;
  /// Tasks that could be launched now if memory allowed.
  std::uint32_t ready() const;
  /// Whether every task of the step is finished on every rank.
  bool step_complete() const;
  /// All of the step at once, for reports.
  stage_snapshot snapshot() const;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

/// How all stages of a run choose their tasks: the policy that ranks them, and how strictly it is
/// followed.
struct dispatch_rule {
  /// In-order mode needs policies with one lane (a sequence).
  policy_factory make_policy;
  dispatch_mode mode = dispatch_mode::ready;
  /// The next two: as in stage_config.
  std::uint32_t weight_pieces = 0;
  std::uint32_t early_forwards = 0;
  /// The order of the policy may differ from step to step: one is made for each step.
  bool renews_policy = false;
};

/// The core of a stage that follows the rule. `config` gives the rest; early forwards are left out
/// if forwards run in order. The policies must pass check_policy().
stage_core make_stage_core(stage_config config, const dispatch_rule& rule);

}  // namespace rrfp

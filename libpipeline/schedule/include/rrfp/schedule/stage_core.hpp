/// The heart of the runtime: which task does a stage run next?
///
/// `on(event) -> actions` is the only door. Events are recorded as they come; on `decide` the core
/// fills the stage's launch queue (one running launch and `lookahead` behind it) with the
/// best-ranked tasks that are ready and fit into memory, or says what the stage waits for.
///
/// Invariants: a task is launched once a step and only when its inputs are on every rank of the
/// stage; launches run in the order of their numbers, so what a launch needs from an earlier one of
/// the same stage is there when it runs; the fold of each chunk's weight gradients follows the
/// numbers of the microbatches, whatever order the backwards ran in; the stage never waits in ready
/// mode while something ready fits.
///
/// The actor runtime and the simulator drive the same class, and a recorded run replayed through it
/// gives the same actions. No clock, thread, file or random source; not thread-safe; an event that
/// breaks the protocol (an arrival twice, a finish that was never launched) aborts the process.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <rrfp/schedule/event.hpp>
#include <rrfp/schedule/memory.hpp>
#include <rrfp/schedule/placement.hpp>
#include <rrfp/schedule/policy.hpp>

namespace rrfp {

/// in_order obeys the policy's ranking and waits for it (one lane only); ready never waits.
enum class dispatch_mode : std::uint8_t { in_order, ready };

std::string_view name(dispatch_mode mode);
std::optional<dispatch_mode> dispatch_mode_of(std::string_view name);

struct stage_config {
  pipeline_shape shape;
  stage_id stage;
  /// Tensor-parallel ranks whose arrivals and finishes are tallied, 1..64.
  std::uint32_t ranks = 1;
  /// Launches that may wait behind the running one.
  std::uint32_t lookahead = 0;
  dispatch_mode mode = dispatch_mode::ready;
  memory_limit limit;
};

class stage_core {
 public:
  stage_core(stage_config config, std::unique_ptr<policy> hint);
  stage_core(stage_core&&) noexcept;
  stage_core& operator=(stage_core&&) noexcept;
  ~stage_core();

  /// The actions are valid until the next call. Only `decide` returns any; `wait` comes alone and
  /// only while nothing is launched.
  std::span<const action> on(const event& e);

  const stage_config& config() const;
  const policy& hint() const;
  const memory_use& memory() const;
  /// BW or B of this microbatch and chunk, as the policy splits it.
  task_kind backward_of(microbatch_id mb, chunk_id chunk) const;
  /// Launched and not yet finished on every rank.
  std::uint32_t outstanding() const;
  /// Tasks of this step not yet launched.
  std::uint32_t remaining() const;
  /// Tasks that could be launched now if they fit.
  std::uint32_t ready() const;
  /// Every task of the step is finished on every rank.
  bool step_complete() const;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace rrfp

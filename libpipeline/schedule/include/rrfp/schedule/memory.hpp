/// Memory slots: the right of a microbatch to hold memory on one stage.
///
/// A microbatch takes its slot at its first F on the stage and gives it back when its last weight
/// gradient there is folded, so activations that wait for W count.
///
/// Why no limit can deadlock: the oldest microbatch without a slot may take any free one; a younger
/// one may take a slot only if enough stays free for every older one that has none. So the oldest
/// microbatch of the whole job always finds room on every stage, waits for nobody, finishes, and
/// gives its slots back; then the next is the oldest. This holds for any hint, placement, order of
/// arrival and limit >= 1 microbatch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <rrfp/schedule/ids.hpp>

namespace rrfp {

/// What a stage may hold. Zero means: no limit of that sort.
struct memory_limit {
  /// Microbatches with a slot at the same time.
  std::uint32_t slots = 0;
  /// Sum of slot_bytes of the microbatches with a slot. A microbatch that is larger than the limit
  /// by itself still runs, alone.
  std::uint64_t bytes = 0;
  /// The paper's back-pressure: with forwards done - backwards done >= run_ahead, only the oldest
  /// unfinished microbatch may run further forwards. Pending W are not counted.
  std::uint32_t run_ahead = 0;

  bool operator==(const memory_limit&) const = default;
};

/// What a stage holds now and held at most in this step.
struct memory_use {
  std::uint32_t slots = 0;
  std::uint32_t slots_peak = 0;
  std::uint64_t bytes = 0;
  std::uint64_t bytes_peak = 0;
  /// (microbatch, chunk) pairs between F and fold: what schedules with chunks are measured in.
  std::uint32_t activations = 0;
  std::uint32_t activations_peak = 0;

  bool operator==(const memory_use&) const = default;
};

/// The slots of one stage for one step. Not thread-safe; cost O(1) amortized a step, but for
/// may_take() of a young microbatch under a byte limit: O(number of older ones without a slot).
class memory_slots {
 public:
  memory_slots(memory_limit limit, std::uint32_t microbatches, std::uint32_t chunks);

  /// Everything free again. `slot_bytes` may be empty: then bytes are not counted.
  void reset(std::span<const std::uint64_t> slot_bytes);

  bool holds(microbatch_id mb) const { return state_[mb.value()] == state::held; }
  /// The oldest microbatch that has not had its slot yet; equal to m when all have.
  std::uint32_t oldest_waiting() const { return oldest_waiting_; }
  /// Whether `mb`, which has no slot yet, may take one without endangering an older one.
  bool may_take(microbatch_id mb) const;
  /// Whether it fits at all; the rule of in-order mode, whose sequences are proved beforehand.
  bool fits(microbatch_id mb) const;
  void take(microbatch_id mb);

  /// An F was launched: one activation more.
  void activation_begins();
  /// The weight gradient of (mb, some chunk) is folded; the last one frees the slot.
  void activation_ends(microbatch_id mb);

  const memory_limit& limit() const { return limit_; }
  const memory_use& use() const { return use_; }

 private:
  enum class state : std::uint8_t { waiting, held, released };

  std::uint64_t bytes_of(std::uint32_t mb) const { return bytes_.empty() ? 0 : bytes_[mb]; }

  memory_limit limit_;
  std::uint32_t chunks_;
  std::vector<state> state_;
  std::vector<std::uint32_t> chunks_left_;
  std::vector<std::uint64_t> bytes_;
  std::uint32_t oldest_waiting_ = 0;
  memory_use use_;
};

}  // namespace rrfp

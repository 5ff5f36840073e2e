/// Memory slots: the right of a microbatch to hold memory on one stage.
///
/// A microbatch takes its slot at its first F on the stage and releases it when its last weight
/// gradient there is folded. Activations that wait for W therefore count.
///
/// Why no limit can deadlock: the oldest microbatch without a slot may take any free slot; a
/// younger one may take a slot only if enough slots stay free for every older one without a slot.
/// The oldest microbatch of the job therefore finds a slot on every stage, waits for no other
/// microbatch, finishes and releases its slots; then the next one is the oldest. This holds for any
/// hint, placement, arrival order and limit >= 1 microbatch.
///
/// With a limit of activations, a microbatch holds one unit for each chunk instead of one slot: it
/// takes it at F of the chunk and releases it when the chunk's weight gradient is folded. A younger
/// microbatch may take a unit only if afterwards enough units stay free for all remaining F of the
/// oldest microbatch that still has an F to run here. All F of a microbatch run before its first B,
/// so that microbatch still holds what it has taken, and the younger ones together never hold more
/// than limit - chunks. The oldest microbatch of the job, when all older ones have finished, thus
/// finds room for every chunk. This holds for any limit >= chunks.
///
/// The paper's back-pressure (arXiv 2605.18750, appendix C.2) counts D = forwards - backwards that
/// a stage has run in the step, and nothing for a pending W. While D >= run_ahead, a stage with one
/// chunk runs no F, and of a stage with several only the oldest unfinished microbatch runs its next
/// F or B; W may run. So D <= run_ahead with one chunk, and D <= run_ahead + chunks with several.
/// The back-pressure cannot deadlock either.
///
/// - Several chunks: take the oldest microbatch of the job that is not finished. All older ones are
///   finished on every stage. So it is the oldest on every stage, and its next task runs.
/// - One chunk: a ready B always runs. If nothing runs, all stages have run the same number of
///   backwards, and the last stage of the pipeline no more forwards than backwards. Take the last
///   stage that has an F left: it is below its limit, so its F runs after all.
///
/// A further limit would break this argument: a slot kept free for an older microbatch stays unused
/// if an earlier stage holds that microbatch back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <rrfp/base/ids.hpp>

namespace rrfp {

/// The memory limits of a stage. Zero means no limit of that kind.
struct memory_limit {
  /// Maximum number of microbatches that hold a slot at the same time.
  std::uint32_t slots = 0;
  /// Maximum sum of slot_bytes over the microbatches that hold a slot. A microbatch that exceeds
  /// the limit on its own still runs, alone.
  std::uint64_t bytes = 0;
  /// The paper's back-pressure, which excludes the other limits; see above.
  std::uint32_t run_ahead = 0;
  /// Maximum number of activations: (microbatch, chunk) pairs between F and fold. At least the
  /// number of chunks; not together with slots or bytes.
  std::uint32_t activations = 0;

  bool operator==(const memory_limit&) const = default;
};

/// The limit that stops a microbatch.
enum class memory_bound : std::uint8_t { none, slots, bytes, run_ahead, activations };

/// The memory that a stage holds now, and its peak in this step.
struct memory_use {
  std::uint32_t slots = 0;
  std::uint32_t slots_peak = 0;
  std::uint64_t bytes = 0;
  std::uint64_t bytes_peak = 0;
  /// (microbatch, chunk) pairs between F and fold, the unit that schedules with chunks report.
  std::uint32_t activations = 0;
  std::uint32_t activations_peak = 0;

  bool operator==(const memory_use&) const = default;
};

/// The slots of one stage for one step. Not thread-safe. Calls take amortized O(1), except reset(),
/// O(microbatches), and may_take() for a young microbatch under a byte limit, O(number of older
/// ones without a slot).
class memory_slots {
 public:
  memory_slots() = default;
  memory_slots(memory_limit limit, std::uint32_t microbatches, std::uint32_t chunks);

  /// Frees all slots. If `slot_bytes` is empty, bytes are not counted.
  void reset(std::span<const std::uint64_t> slot_bytes);

  /// Whether the microbatch holds memory here.
  bool holds(microbatch_id mb) const {
    return taken_[mb.value()] != 0 && folded_[mb.value()] < chunks_;
  }
  /// Whether a further F of the microbatch must take a slot or an activation first.
  bool must_take(microbatch_id mb) const { return limit_.activations != 0 || !holds(mb); }
  /// The oldest microbatch that has not taken all that it needs; m if all have.
  std::uint32_t oldest_waiting() const { return oldest_waiting_; }
  /// The limit that `mb` would exceed if it took a slot (or one more activation) and left enough
  /// for every older microbatch.
  memory_bound bound_on_taking(microbatch_id mb) const;
  bool may_take(microbatch_id mb) const { return bound_on_taking(mb) == memory_bound::none; }
  /// The limit that `mb` would exceed now; used by in-order mode, whose sequences are checked in
  /// advance.
  memory_bound bound_on_fitting(microbatch_id mb) const;
  bool fits(microbatch_id mb) const { return bound_on_fitting(mb) == memory_bound::none; }
  /// Takes a slot, or one activation under a limit of activations. Does not check the limit: the
  /// caller asks may_take() or fits() first. Aborts if the microbatch has taken all that it needs.
  void take(microbatch_id mb);

  /// Records the launch of an F: one more activation.
  void activation_begins();
  /// Records that the weight gradient of (mb, some chunk) is folded; the last one frees the slot.
  void activation_ends(microbatch_id mb);

  const memory_limit& limit() const { return limit_; }
  const memory_use& use() const { return use_; }

 private:
  /// What a microbatch takes in a step: one slot, or one activation for each chunk.
  std::uint32_t needed() const { return limit_.activations != 0 ? chunks_ : 1; }
  std::uint64_t bytes_of(std::uint32_t mb) const { return bytes_.empty() ? 0 : bytes_[mb]; }

  memory_limit limit_;
  std::uint32_t chunks_ = 0;
  std::vector<std::uint32_t> taken_;   ///< by microbatch: slots or activations taken
  std::vector<std::uint32_t> folded_;  ///< by microbatch: chunks folded
  std::vector<std::uint64_t> bytes_;
  std::uint32_t oldest_waiting_ = 0;
  memory_use use_;
};

}  // namespace rrfp

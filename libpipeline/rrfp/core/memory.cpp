#include <rrfp/core/memory.hpp>

#include <algorithm>

#include <rrfp/base/check.hpp>

namespace rrfp {

memory_slots::memory_slots(memory_limit limit, std::uint32_t microbatches, std::uint32_t chunks)
    : limit_(limit), chunks_(chunks), taken_(microbatches), folded_(microbatches) {
  RRFP_CHECK(limit.activations == 0 ||
                 (limit.activations >= chunks && limit.slots == 0 && limit.bytes == 0),
             "a limit of activations is at least the number of chunks, without slots or bytes");
  reset({});
}

void memory_slots::reset(std::span<const std::uint64_t> slot_bytes) {
  RRFP_CHECK(slot_bytes.empty() || slot_bytes.size() == taken_.size(),
             "slot_bytes must have one entry per microbatch");
  std::fill(taken_.begin(), taken_.end(), 0);
  std::fill(folded_.begin(), folded_.end(), 0);
  bytes_.assign(slot_bytes.begin(), slot_bytes.end());
  oldest_waiting_ = 0;
  use_ = {};
}

memory_bound memory_slots::bound_on_fitting(microbatch_id mb) const {
  if (limit_.activations != 0)
    return use_.activations < limit_.activations ? memory_bound::none : memory_bound::activations;
  if (limit_.slots != 0 && use_.slots >= limit_.slots) return memory_bound::slots;
  if (limit_.bytes == 0 || use_.slots == 0) return memory_bound::none;
  return use_.bytes + bytes_of(mb.value()) <= limit_.bytes ? memory_bound::none
                                                           : memory_bound::bytes;
}

memory_bound memory_slots::bound_on_taking(microbatch_id mb) const {
  RRFP_CHECK(taken_[mb.value()] < needed(), "a microbatch takes its slot once per step");
  const auto now = bound_on_fitting(mb);
  if (now != memory_bound::none || mb.value() == oldest_waiting_) return now;
  if (limit_.activations != 0) {
    const auto reserved = chunks_ - taken_[oldest_waiting_];
    return use_.activations + 1 + reserved <= limit_.activations ? memory_bound::none
                                                                 : memory_bound::activations;
  }
  if (limit_.slots != 0 && use_.slots + 2 > limit_.slots) return memory_bound::slots;
  if (limit_.bytes == 0) return memory_bound::none;
  std::uint64_t reserved = 0;
  for (auto older = oldest_waiting_; older < mb.value(); ++older)
    if (taken_[older] == 0) reserved = std::max(reserved, bytes_of(older));
  return use_.bytes + bytes_of(mb.value()) + reserved <= limit_.bytes ? memory_bound::none
                                                                      : memory_bound::bytes;
}

void memory_slots::take(microbatch_id mb) {
  auto& taken = taken_[mb.value()];
  RRFP_CHECK(taken < needed(), "a microbatch takes its slot once per step");
  if (taken++ == 0) {
    ++use_.slots;
    use_.bytes += bytes_of(mb.value());
    use_.slots_peak = std::max(use_.slots_peak, use_.slots);
    use_.bytes_peak = std::max(use_.bytes_peak, use_.bytes);
  }
  while (oldest_waiting_ < taken_.size() && taken_[oldest_waiting_] == needed()) ++oldest_waiting_;
}

void memory_slots::activation_begins() {
  ++use_.activations;
  use_.activations_peak = std::max(use_.activations_peak, use_.activations);
}

void memory_slots::activation_ends(microbatch_id mb) {
  RRFP_CHECK(holds(mb), "only an activation with a slot can be folded");
  --use_.activations;
  if (++folded_[mb.value()] < chunks_) return;
  --use_.slots;
  use_.bytes -= bytes_of(mb.value());
}

}  // namespace rrfp

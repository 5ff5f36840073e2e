#include <rrfp/schedule/memory.hpp>

#include <algorithm>

#include <rrfp/base/check.hpp>

namespace rrfp {

memory_slots::memory_slots(memory_limit limit, std::uint32_t microbatches, std::uint32_t chunks)
    : limit_(limit), chunks_(chunks), state_(microbatches), chunks_left_(microbatches) {
  reset({});
}

void memory_slots::reset(std::span<const std::uint64_t> slot_bytes) {
  RRFP_CHECK(slot_bytes.empty() || slot_bytes.size() == state_.size(),
             "slot_bytes must have one entry per microbatch");
  std::fill(state_.begin(), state_.end(), state::waiting);
  std::fill(chunks_left_.begin(), chunks_left_.end(), chunks_);
  bytes_.assign(slot_bytes.begin(), slot_bytes.end());
  oldest_waiting_ = 0;
  use_ = {};
}

memory_bound memory_slots::bound_on_fitting(microbatch_id mb) const {
  if (limit_.slots != 0 && use_.slots >= limit_.slots) return memory_bound::slots;
  if (limit_.bytes == 0 || use_.slots == 0) return memory_bound::none;
  return use_.bytes + bytes_of(mb.value()) <= limit_.bytes ? memory_bound::none
                                                           : memory_bound::bytes;
}

memory_bound memory_slots::bound_on_taking(microbatch_id mb) const {
  RRFP_CHECK(state_[mb.value()] == state::waiting, "a microbatch takes its slot once per step");
  const auto now = bound_on_fitting(mb);
  if (now != memory_bound::none || mb.value() == oldest_waiting_) return now;
  if (limit_.slots != 0 && use_.slots + 2 > limit_.slots) return memory_bound::slots;
  if (limit_.bytes == 0) return memory_bound::none;
  std::uint64_t reserved = 0;
  for (auto older = oldest_waiting_; older < mb.value(); ++older)
    if (state_[older] == state::waiting) reserved = std::max(reserved, bytes_of(older));
  return use_.bytes + bytes_of(mb.value()) + reserved <= limit_.bytes ? memory_bound::none
                                                                      : memory_bound::bytes;
}

void memory_slots::take(microbatch_id mb) {
  RRFP_CHECK(state_[mb.value()] == state::waiting, "a microbatch takes its slot once per step");
  state_[mb.value()] = state::held;
  while (oldest_waiting_ < state_.size() && state_[oldest_waiting_] != state::waiting)
    ++oldest_waiting_;
  ++use_.slots;
  use_.bytes += bytes_of(mb.value());
  use_.slots_peak = std::max(use_.slots_peak, use_.slots);
  use_.bytes_peak = std::max(use_.bytes_peak, use_.bytes);
}

void memory_slots::activation_begins() {
  ++use_.activations;
  use_.activations_peak = std::max(use_.activations_peak, use_.activations);
}

void memory_slots::activation_ends(microbatch_id mb) {
  RRFP_CHECK(state_[mb.value()] == state::held && chunks_left_[mb.value()] > 0,
             "only an activation with a slot can be folded");
  --use_.activations;
  if (--chunks_left_[mb.value()] > 0) return;
  state_[mb.value()] = state::released;
  --use_.slots;
  use_.bytes -= bytes_of(mb.value());
}

}  // namespace rrfp

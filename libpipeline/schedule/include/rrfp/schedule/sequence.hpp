/// Fixed schedules as data: is a set of sequences, one a stage, complete and free of cycles?
#pragma once

#include <span>
#include <vector>

#include <rrfp/schedule/memory.hpp>
#include <rrfp/schedule/placement.hpp>
#include <rrfp/schedule/policy.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp {

/// Proves that obeying `sequences` (indexed by stage) in order ends: every task is there exactly
/// once, none is foreign to the shape, and no stage waits in a circle. The error names the first
/// missing or doubled task, or the cycle: who waits for what, stage by stage.
status check_sequences(const pipeline_shape& shape, std::span<const sequence> sequences);

/// Proves that a stage that obeys `order` never needs more slots than `limit` gives, or says at
/// which task it would. `slot_bytes` as in step_began.
status check_slots(const pipeline_shape& shape, stage_id stage, const sequence& order,
                   const memory_limit& limit, std::span<const std::uint64_t> slot_bytes = {});

/// The order that a policy of one lane means: all tasks of its stage, by rank.
sequence obeyed_order(const policy& hint, const pipeline_shape& shape);

}  // namespace rrfp

/// Fixed schedules as data, with checks that they are complete and free of cycles.
#pragma once

#include <span>

#include <rrfp/base/result.hpp>
#include <rrfp/core/memory.hpp>
#include <rrfp/core/placement.hpp>
#include <rrfp/core/policy.hpp>

namespace rrfp {

/// Proves that executing `sequences` (indexed by stage) in order terminates: every task occurs
/// exactly once, all belong to the shape, and no cycle of stages waits for each other. The error
/// names the first missing or duplicate task, or the cycle: each stage and what it waits for.
status check_sequences(const pipeline_shape& shape, std::span<const sequence> sequences);

/// Checks that `order` holds every F of the stage once, and for each F its BW or its B and W. The
/// error names the first foreign, duplicate or missing task.
status check_sequence(const pipeline_shape& shape, stage_id stage, const sequence& order);

/// Proves that a stage that executes `order` never needs more slots than `limit` allows. The error
/// names the first task that would. `slot_bytes` as in step_began.
status check_slots(const pipeline_shape& shape, stage_id stage, const sequence& order,
                   const memory_limit& limit, std::span<const std::uint64_t> slot_bytes = {});

/// The sequence that a policy of one lane defines: all tasks of its stage, sorted by rank.
sequence obeyed_order(const policy& hint, const pipeline_shape& shape);

}  // namespace rrfp

/// The memory limits of a stage in a run.
#pragma once

#include <algorithm>

#include <rrfp/experiment/experiment.hpp>
#include <rrfp/schedule/memory.hpp>
#include <rrfp/schedule/placement.hpp>

namespace rrfp::experiment {

inline memory_limit limit_of(const run_options& r, const pipeline_shape& shape, stage_id stage) {
  const auto m = shape.microbatches;
  const auto automatic = r.mode == run_mode::ready ? std::min(2 * shape.stages, m) : 0;
  auto slots = r.slots.value_or(automatic);
  if (slots == slots_of_stages) slots = std::min(shape.stages, m);
  if (slots == slots_of_1f1b) slots = std::min(shape.stages - stage.value(), m);
  return {.slots = slots, .bytes = r.slot_bytes, .run_ahead = r.run_ahead};
}

}  // namespace rrfp::experiment

#include "lower_bound.hpp"

#include <algorithm>
#include <limits>

namespace rrfp::simulate {

namespace {
constexpr auto never = std::numeric_limits<nanoseconds>::max();
}

lower_bound::lower_bound(const pipeline_shape& shape)
    : stages_(shape.stages),
      microbatches_(shape.microbatches),
      stages_sums_(shape.stages),
      ways_(shape.microbatches),
      down_at_stage_(std::size_t{shape.stages} * shape.microbatches) {}

void lower_bound::reset() {
  std::fill(stages_sums_.begin(), stages_sums_.end(), stage_sums{0, 0, never});
  std::fill(ways_.begin(), ways_.end(), journey{});
}

void lower_bound::add_task(virtual_stage_id at, stage_id stage, const task& what,
                           nanoseconds duration) {
  auto& sums = stages_sums_[stage.value()];
  auto& way = ways_[what.mb.value()];
  // In every placement the virtual stages below p are the first of their stages.
  const bool first_of_stage = at.value() < stages_;
  switch (what.kind) {
    case task_kind::forward:
      sums.forward_backward += duration;
      if (first_of_stage) sums.head = std::min(sums.head, way.up);
      way.up += duration;
      return;
    case task_kind::backward:
    case task_kind::backward_weight:
      sums.forward_backward += duration;
      way.down += duration;
      if (first_of_stage)
        down_at_stage_[std::size_t{stage.value()} * microbatches_ + what.mb.value()] = way.down;
      return;
    case task_kind::weight:
      sums.weight += duration;
      // Nothing of this microbatch travels any more: its W there ends the way.
      if (at.value() == 0) way.down += duration;
      return;
  }
}

void lower_bound::add_link(task_kind direction, microbatch_id mb, nanoseconds duration) {
  auto& way = ways_[mb.value()];
  (direction == task_kind::forward ? way.up : way.down) += duration;
}

nanoseconds lower_bound::value() const {
  nanoseconds bound = 0;
  for (const auto& way : ways_) bound = std::max(bound, way.up + way.down);
  for (std::uint32_t s = 0; s < stages_; ++s) {
    // On stage 0 nothing is left to travel; its own W are in its sum.
    auto tail = s == 0 ? 0 : never;
    for (std::uint32_t mb = 0; s != 0 && mb < microbatches_; ++mb)
      tail = std::min(tail, ways_[mb].down - down_at_stage_[std::size_t{s} * microbatches_ + mb]);
    const auto& sums = stages_sums_[s];
    bound = std::max(bound, sums.head + sums.forward_backward + std::max(sums.weight, tail));
  }
  return bound;
}

}  // namespace rrfp::simulate

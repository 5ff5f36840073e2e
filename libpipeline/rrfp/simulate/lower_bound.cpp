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
      paths_(shape.microbatches),
      down_at_stage_(std::size_t{shape.stages} * shape.microbatches) {}

void lower_bound::reset() {
  std::fill(stages_sums_.begin(), stages_sums_.end(), stage_sums{0, 0, never});
  std::fill(paths_.begin(), paths_.end(), path_time{});
}

void lower_bound::add_task(virtual_stage_id at, stage_id stage, const task& t,
                           nanoseconds duration) {
  auto& sums = stages_sums_[stage.value()];
  auto& path = paths_[t.mb.value()];
  // In every placement, the virtual stages below p are the first of their stages.
  const bool first_of_stage = at.value() < stages_;
  switch (t.kind) {
    case task_kind::forward:
      sums.forward_backward += duration;
      if (first_of_stage) sums.head = std::min(sums.head, path.up);
      path.up += duration;
      return;
    case task_kind::backward:
    case task_kind::backward_weight:
      sums.forward_backward += duration;
      path.down += duration;
      if (first_of_stage)
        down_at_stage_[std::size_t{stage.value()} * microbatches_ + t.mb.value()] = path.down;
      return;
    case task_kind::weight:
      sums.weight += duration;
      // No message of this microbatch follows: its W there ends its path.
      if (at.value() == 0) path.down += duration;
      return;
  }
}

void lower_bound::add_link(task_kind direction, microbatch_id mb, nanoseconds duration) {
  auto& path = paths_[mb.value()];
  (direction == task_kind::forward ? path.up : path.down) += duration;
}

nanoseconds lower_bound::value() const {
  nanoseconds bound = 0;
  for (const auto& path : paths_) bound = std::max(bound, path.up + path.down);
  for (std::uint32_t s = 0; s < stages_; ++s) {
    // Stage 0 has no gradient left to send; its own W are in its sum.
    auto tail = s == 0 ? 0 : never;
    for (std::uint32_t mb = 0; s != 0 && mb < microbatches_; ++mb)
      tail = std::min(tail, paths_[mb].down - down_at_stage_[std::size_t{s} * microbatches_ + mb]);
    const auto& sums = stages_sums_[s];
    bound = std::max(bound, sums.head + sums.forward_backward + std::max(sums.weight, tail));
  }
  return bound;
}

}  // namespace rrfp::simulate

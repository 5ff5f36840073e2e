#include "costs.hpp"

#include <cmath>

namespace rrfp::forecast {

even_costs::even_costs(const simulate::cost_model& all, const report::profile& recorded)
    : all_(all), virtual_stages_(recorded.shape.virtual_stages()) {
  for (const auto& t : recorded.tasks) {
    if (t.replica != replica_id{0}) continue;
    auto& s = sums_[{t.step, t.what.mb, t.what.kind == task_kind::forward}];
    s.parts[{t.stage, t.what.chunk}] += t.took;
    s.all += t.took;
  }
}

nanoseconds even_costs::compute(step_id step, stage_id stage, const task& t) const {
  const auto& s = sums_.at({step, t.mb, t.kind == task_kind::forward});
  const auto own = s.parts.at({stage, t.chunk});
  if (own == 0) return 0;
  const auto share = static_cast<double>(all_.compute(step, stage, t)) / static_cast<double>(own);
  return std::llround(share * static_cast<double>(s.all) / virtual_stages_);
}

nanoseconds merged_costs::compute(step_id step, stage_id stage, const task& t) const {
  const auto merged = merged_.virtual_stage(stage, t.chunk);
  nanoseconds sum = 0;
  for (const auto number : {0u, 1u}) {
    const auto at = recorded_.at(half(merged, number));
    sum += all_.compute(step, at.stage, as_recorded(t, at.chunk));
  }
  return sum;
}

nanoseconds merged_costs::link(step_id step, virtual_stage_id to, const task& t) const {
  const auto into = half(to, t.kind == task_kind::forward ? 0 : 1);
  return all_.link(step, into, as_recorded(t, recorded_.at(into).chunk));
}

}  // namespace rrfp::forecast

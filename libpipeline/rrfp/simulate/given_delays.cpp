#include <rrfp/simulate/given_delays.hpp>

namespace rrfp::simulate {

step_id given_delays::listed(step_id step) const {
  return steps_ == 0 ? step : step_id{step.value() % steps_};
}

nanoseconds given_delays::compute(step_id step, stage_id stage, const task& t) const {
  const auto at = listed(step);
  if (const auto known = table_.duration_of(at, stage, t)) return *known;
  if (t.kind != task_kind::backward_weight) return 0;
  auto part = t;
  part.kind = task_kind::backward;
  const auto backward = table_.duration_of(at, stage, part).value_or(0);
  part.kind = task_kind::weight;
  return backward + table_.duration_of(at, stage, part).value_or(0);
}

nanoseconds given_delays::link(step_id step, virtual_stage_id to, const task& t) const {
  return table_.link(listed(step), to, t);
}

}  // namespace rrfp::simulate

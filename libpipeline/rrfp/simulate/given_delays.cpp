#include <rrfp/simulate/given_delays.hpp>

#include <utility>

namespace rrfp::simulate {

given_delays::given_delays(duration_table table)
    : table_(std::move(table)), steps_(table_.steps()) {}

result<given_delays> given_delays::read(const std::string& file, const pipeline_shape& shape) {
  auto table = duration_table::read(file, shape);
  if (!table) return table.failure();
  return given_delays{std::move(*table)};
}

result<given_delays> given_delays::parse(std::string_view text, std::string_view file,
                                         const pipeline_shape& shape) {
  auto table = duration_table::parse(text, file, shape);
  if (!table) return table.failure();
  return given_delays{std::move(*table)};
}

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

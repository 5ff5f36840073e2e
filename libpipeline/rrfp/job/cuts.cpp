#include <numeric>
#include <span>

#include <rrfp/job/job.hpp>
#include <rrfp/job/model_rules.hpp>
#include <rrfp/workload/partition.hpp>

#include "schema.hpp"

namespace rrfp::job {

namespace {

/// Such that the slowest part, with the speed of its stage, takes the least time.
std::vector<std::uint32_t> by_cost(const job& j, const pipeline_shape& shape) {
  const auto& c = j.cost;
  std::vector<double> costs(c.forward_ms.size());
  for (std::size_t i = 0; i < costs.size(); ++i)
    costs[i] = c.forward_ms[i] + c.backward_ms[i] + c.weight_ms[i];
  std::vector<double> speeds;
  for (std::uint32_t v = 0; v < shape.virtual_stages(); ++v)
    speeds.push_back(speed_of(j, shape.at(virtual_stage_id{v}).stage));
  const auto first = workload::cut_evenly(costs, shape.virtual_stages(), speeds);
  std::vector<std::uint32_t> counts(speeds.size());
  for (std::size_t v = 0; v < counts.size(); ++v) counts[v] = first[v + 1] - first[v];
  return counts;
}

/// The entry of a list in [cost] that applies to a virtual stage.
double cost_at(const std::vector<double>& list, const pipeline_shape& shape, virtual_stage_id vs) {
  if (list.size() == 1) return list[0];
  return list[list.size() == shape.stages ? shape.at(vs).stage.value() : vs.value()];
}

}  // namespace

double speed_of(const job& j, stage_id stage) {
  const auto& speeds = j.cost.speed;
  return speeds[speeds.size() == 1 ? 0 : stage.value()];
}

std::vector<std::uint32_t> layers_of_parts(const job& j) {
  const auto shape = effective_shape(j);
  const auto& cuts = j.pipeline.cuts;
  const bool is_of_model = !has_other_costs(j);
  if (is_of_model && cuts.kind == cut_kind::given) return cuts.layers;
  if (is_of_model && cuts.kind == cut_kind::cost) return by_cost(j, shape);
  return even_cut(all_layers_of(j.model), shape.virtual_stages());
}

bool has_layer_times(const job& j) {
  const auto shape = effective_shape(j);
  const auto n = j.cost.forward_ms.size();
  return n != 1 && n != shape.stages && n != shape.virtual_stages();
}

std::vector<simulate::task_durations> times_of_parts(const job& j) {
  const auto shape = effective_shape(j);
  const auto& c = j.cost;
  const bool by_layer = has_layer_times(j);
  const auto layers = by_layer ? layers_of_parts(j) : std::vector<std::uint32_t>{};
  std::size_t first = 0;
  std::vector<simulate::task_durations> times;
  for (virtual_stage_id vs; vs.value() < shape.virtual_stages();
       vs = virtual_stage_id{vs.value() + 1}) {
    const auto of = [&](const std::vector<double>& list) {
      if (!by_layer) return cost_at(list, shape, vs);
      const auto own = std::span{list}.subspan(first, layers[vs.value()]);
      return std::accumulate(own.begin(), own.end(), 0.0);
    };
    const auto speed = speed_of(j, shape.at(vs).stage);
    times.push_back({of(c.forward_ms) / speed, of(c.backward_ms) / speed, of(c.weight_ms) / speed});
    if (by_layer) first += layers[vs.value()];
  }
  return times;
}

}  // namespace rrfp::job

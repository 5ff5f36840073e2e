#include <numeric>
#include <string>

#include <rrfp/job/model_rules.hpp>
#include <rrfp/job/value.hpp>

#include "schema.hpp"
#include "validate.hpp"

namespace rrfp::job {

namespace {

/// The number of values of lists that the other checks read.
status check_sizes(const job& j, const provenance& from) {
  const auto speeds = j.cost.speed.size();
  if (speeds != 1 && speeds != j.pipeline.stages)
    return from.blame("cost.speed",
                      "expected one value or " + std::to_string(j.pipeline.stages) +
                          " (one per stage), got " + std::to_string(speeds),
                      "pipeline.stages");
  const auto& cuts = j.pipeline.cuts;
  const auto parts = effective_shape(j).virtual_stages();
  if (cuts.kind != cut_kind::given || cuts.layers.size() == parts) return success();
  return from.blame("pipeline.cuts",
                    "expected " + std::to_string(parts) + " numbers (stages * chunks), got " +
                        std::to_string(cuts.layers.size()),
                    "pipeline.stages");
}

status check_extension(const job& j, const provenance& from) {
  const auto* more = schema_of(j).more();
  return more != nullptr ? more->check(j, from) : success();
}

/// The lists of [cost], and their number of values: one for all, one per stage, per virtual stage
/// or per layer. If one of them is by layer, all are.
status check_times(const job& j, const provenance& from) {
  const auto shape = effective_shape(j);
  const std::size_t layers = all_layers_of(j.model);
  const bool may_be_by_layer = layers > shape.virtual_stages();
  const bool by_layer =
      may_be_by_layer && (j.cost.forward_ms.size() == layers ||
                          j.cost.backward_ms.size() == layers || j.cost.weight_ms.size() == layers);
  for (const auto& [key, list] : {std::pair{"cost.forward_ms", &j.cost.forward_ms},
                                  {"cost.backward_ms", &j.cost.backward_ms},
                                  {"cost.weight_ms", &j.cost.weight_ms}}) {
    const auto n = list->size();
    if (by_layer ? n == layers : n == 1 || n == shape.stages || n == shape.virtual_stages())
      continue;
    std::string expected =
        by_layer ? "" : "one value or " + std::to_string(shape.stages) + " (one per stage)";
    if (!by_layer && shape.chunks > 1)
      expected += " or " + std::to_string(shape.virtual_stages()) + " (one per virtual stage)";
    if (may_be_by_layer)
      expected += (by_layer ? "" : " or ") + std::to_string(layers) + " (one per layer)";
    return from.blame(key, "expected " + expected + ", got " + std::to_string(n), "cost.profile");
  }
  return success();
}

/// How pipeline.cuts divides the layers of [model].
status check_cuts(const job& j, const provenance& from) {
  if (has_other_costs(j)) return success();
  const auto& cuts = j.pipeline.cuts;
  const auto parts = effective_shape(j).virtual_stages();
  const std::size_t layers = all_layers_of(j.model);
  if (cuts.kind == cut_kind::given) {
    const auto sum = std::accumulate(cuts.layers.begin(), cuts.layers.end(), std::uint64_t{0});
    if (sum == layers) return success();
    return from.blame(
        "pipeline.cuts",
        "expected all " + std::to_string(layers) + " layers, got " + std::to_string(sum),
        "model.layers");
  }
  if (cuts.kind != cut_kind::cost) return success();
  if (layers < parts)
    return from.blame("pipeline.cuts",
                      "\"cost\" expects at most as many parts as layers, " +
                          std::to_string(layers) + ", got " + std::to_string(parts),
                      "pipeline.stages");
  for (const auto& [key, number] : {std::pair{"cost.forward_ms", j.cost.forward_ms.size()},
                                    {"cost.backward_ms", j.cost.backward_ms.size()},
                                    {"cost.weight_ms", j.cost.weight_ms.size()}})
    if (number != layers)
      return from.blame("pipeline.cuts",
                        "\"cost\" expects " + std::string{key} + " with " + std::to_string(layers) +
                            " values (one per layer), such as the profile of a run with as many "
                            "stages as layers, got " +
                            std::to_string(number),
                        key);
  return success();
}

}  // namespace

status check_costs(const job& j, const provenance& from) {
  for (const auto check : {check_sizes, check_extension, check_times, check_cuts})
    if (auto held = check(j, from); !held) return held;
  return success();
}

}  // namespace rrfp::job

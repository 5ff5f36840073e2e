#include <numeric>
#include <string>

#include <rrfp/job/model_rules.hpp>
#include <rrfp/job/value.hpp>
#include <rrfp/job/workload.hpp>
#include <rrfp/workload/presets.hpp>

#include "schema.hpp"
#include "validate.hpp"

namespace rrfp::job {

namespace {

/// The tokens of the images must fit into a padded sample.
status check_preset_images(const job& j, const workload::model& model, const provenance& from) {
  if (!model.images || j.texts.spread != workload::text_spread::padded) return success();
  const auto tokens = j.cost.sequence_tokens != 0 ? j.cost.sequence_tokens : model.sequence_tokens;
  const auto of_image = model.images->tokens_per_image();
  if (j.images.most <= tokens / of_image) return success();
  return from.blame("images.most",
                    "expected at most " + std::to_string(tokens / of_image) +
                        ", because a sample has " + std::to_string(tokens) +
                        " tokens and an image " + std::to_string(of_image) + ", got " +
                        std::to_string(j.images.most) + from.note("images.most"),
                    "cost.sequence_tokens");
}

status check_texts(const job& j, const workload::model& model, const provenance& from) {
  const auto& t = j.texts;
  if (t.bins.empty() != (t.spread != workload::text_spread::histogram))
    return from.blame("texts.histogram",
                      t.bins.empty()
                          ? "expected a file with texts.spread = \"histogram\", got none"
                          : "needs texts.spread = \"histogram\", got " + in_quotes(name(t.spread)),
                      "texts.spread");
  if (t.spread == workload::text_spread::padded) return success();
  if (j.cost.sequence_tokens != 0)
    return from.blame("cost.sequence_tokens",
                      "expected 0 with texts.spread = " + in_quotes(name(t.spread)) + ", got " +
                          std::to_string(j.cost.sequence_tokens),
                      "texts.spread");
  if (model.text.positions == 0 || t.most <= model.text.positions) return success();
  return from.blame("texts.most",
                    "expected at most the " + std::to_string(model.text.positions) +
                        " positions of " + in_quotes(model.name) + ", got " +
                        std::to_string(t.most) + from.note("texts.most"),
                    "cost.preset");
}

/// Rejects keys that would have no effect: they are mistakes.
status check_unused_costs(const job& j, const provenance& from) {
  static const job defaults;
  const bool has_preset = !j.cost.preset.empty();
  for (const auto& k : keys()) {
    const bool is_time = k.section() == "cost" && k.path.ends_with("_ms");
    const bool of_preset = k.section() == "machine" || k.section() == "images" ||
                           k.section() == "texts" || k.section() == "experts" ||
                           k.path == "cost.samples" || k.path == "cost.sequence_tokens" ||
                           k.path == "cost.shape_messages";
    if (!(has_preset ? is_time : of_preset) || to_toml(k.get(j)) == to_toml(k.get(defaults)))
      continue;
    if (!has_preset) return from.blame(k.path, "needs cost.preset, which it modifies");
    return from.blame(k.path, "cannot be set together with cost.preset, which gives the times",
                      "cost.profile");
  }
  return success();
}

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

status check_preset(const job& j, const provenance& from) {
  const auto model = workload::preset(j.cost.preset);
  if (!model) return success();
  if (j.pipeline.chunks != 1)
    return from.blame("pipeline.chunks",
                      "expected 1 with cost.preset, got " + std::to_string(j.pipeline.chunks),
                      "cost.preset");
  // The encoder's heads count as divisible: frameworks pad them (InternViT has 25).
  const auto& layer = model->text.layer;
  // Ranks share the matrices of a layer, but have whole experts.
  const auto shared = layer.experts == 0 ? layer.feed_forward : layer.experts;
  if (layer.heads % j.pipeline.tp != 0 || shared % j.pipeline.tp != 0) {
    auto expected = "expected a divisor of the " + std::to_string(layer.heads) + " heads ";
    if (layer.experts != 0) expected += "and the " + std::to_string(layer.experts) + " experts ";
    return from.blame(
        "pipeline.tp",
        expected + "of " + in_quotes(j.cost.preset) + ", got " + std::to_string(j.pipeline.tp),
        "cost.preset");
  }
  if (auto images = check_preset_images(j, *model, from); !images) return images;
  if (auto texts = check_texts(j, *model, from); !texts) return texts;
  if (const auto made = workload_of(j); !made)
    return from.blame(j.pipeline.cuts.kind == cut_kind::given ? "pipeline.cuts" : "pipeline.stages",
                      made.message(), "cost.preset");
  return success();
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
  if (!j.cost.preset.empty()) return success();
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
  for (const auto check : {check_unused_costs, check_sizes, check_preset, check_times, check_cuts})
    if (auto held = check(j, from); !held) return held;
  return success();
}

}  // namespace rrfp::job

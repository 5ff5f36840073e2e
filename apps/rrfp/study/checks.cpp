#include <string>
#include <tuple>
#include <utility>

#include <rrfp/job/value.hpp>
#include <rrfp/study/options.hpp>
#include <rrfp/study/pipeline_cost.hpp>
#include <rrfp/study/presets.hpp>

#include "keys.hpp"

namespace rrfp::study {

namespace {

status check_messages(const job::job& j, const job::provenance& from) {
  const auto& d = j.dispatch;
  if (!blocks_messages(j)) return success();
  if (d.mode != dispatch_mode::in_order)
    return from.blame("dispatch.messages",
                      "\"blocking\" expects dispatch.mode = \"in-order\", got " +
                          job::in_quotes(name(d.mode)) + from.note("dispatch.mode"));
  if (d.lookahead != 0)
    return from.blame(
        "dispatch.lookahead",
        "expected 0 with dispatch.messages = \"blocking\", got " + std::to_string(d.lookahead));
  // Replicas that run each other's microbatches.
  for (const auto& [key, word, is_set] :
       {std::tuple{"pipeline.shares", "measured", j.pipeline.shares == job::share_kind::measured},
        {"recovery.without_replacement", "reroute",
         j.recovery.without_replacement == job::loss_kind::reroute}})
    if (is_set)
      return from.blame(
          key,
          job::in_quotes(word) + " expects dispatch.messages = \"asynchronous\", got \"blocking\"",
          "dispatch.messages");
  return success();
}

/// With another limit, the paper's back-pressure could deadlock.
status check_run_ahead(const job::job& j, const job::provenance& from) {
  const auto& d = j.dispatch;
  const auto run_ahead = options_of(j).dispatch.run_ahead;
  if (run_ahead == 0) return success();
  const auto refused = [&](const std::string& with) {
    return from.blame("dispatch.run_ahead",
                      "expected 0 " + with + ", got " + std::to_string(run_ahead));
  };
  if (d.mode == dispatch_mode::in_order) return refused("in mode in-order");
  for (const auto& [key, is_set] : {std::pair{"dispatch.slots", d.slots.value_or(0) != 0},
                                    {"dispatch.slot_bytes", d.slot_bytes != 0},
                                    {"dispatch.early_forwards", d.early_forwards != 0}})
    if (is_set) return refused("with " + std::string{key});
  return success();
}

/// A disturbance of one stage or link needs that stage or link.
status check_faults(const job::job& j, const job::provenance& from) {
  const auto& c = j.jitter;
  const auto stages = j.pipeline.stages;
  if (c.pause_ms != 0)
    if (auto ok = job::check_stage("jitter.pause_stage", c.pause_stage, stages, from); !ok)
      return ok;
  if (c.slow_link_factor == 1) return success();
  if (stages > 1)
    return job::check_stage("jitter.slow_link_stage", c.slow_link_stage, stages - 1, from);
  return from.blame("jitter.slow_link_factor", "expected at least two stages, got 1",
                    "pipeline.stages");
}

/// Rejects keys that would have no effect: they are mistakes.
status check_unused_costs(const job::job& j, const job::provenance& from) {
  static const auto defaults = new_job();
  const bool has_preset = !options_of(j).cost.preset.empty();
  for (const auto& k : schema().keys()) {
    const bool is_time = k.section() == "cost" && k.path.ends_with("_ms");
    const bool of_preset = k.section() == "machine" || k.section() == "images" ||
                           k.section() == "texts" || k.section() == "experts" ||
                           k.path == "cost.samples" || k.path == "cost.sequence_tokens" ||
                           k.path == "cost.shape_messages";
    if (!(has_preset ? is_time : of_preset) ||
        job::to_toml(k.get(j)) == job::to_toml(k.get(defaults)))
      continue;
    if (!has_preset) return from.blame(k.path, "needs cost.preset, which it modifies");
    return from.blame(k.path, "cannot be set together with cost.preset, which gives the times",
                      "cost.profile");
  }
  return success();
}

/// The tokens of the images must fit into a padded sample.
status check_preset_images(const job::job& j, const workload::model& model,
                           const job::provenance& from) {
  const auto& o = options_of(j);
  if (!model.images || o.texts.spread != text_spread::padded) return success();
  const auto tokens = o.cost.sequence_tokens != 0 ? o.cost.sequence_tokens : model.sequence_tokens;
  const auto of_image = model.images->tokens_per_image();
  if (o.images.most <= tokens / of_image) return success();
  return from.blame("images.most",
                    "expected at most " + std::to_string(tokens / of_image) +
                        ", because a sample has " + std::to_string(tokens) +
                        " tokens and an image " + std::to_string(of_image) + ", got " +
                        std::to_string(o.images.most) + from.note("images.most"),
                    "cost.sequence_tokens");
}

status check_texts(const job::job& j, const workload::model& model, const job::provenance& from) {
  const auto& o = options_of(j);
  const auto& t = o.texts;
  if (t.bins.empty() != (t.spread != text_spread::histogram))
    return from.blame("texts.histogram",
                      t.bins.empty() ? "expected a file with texts.spread = \"histogram\", got none"
                                     : "needs texts.spread = \"histogram\", got " +
                                           job::in_quotes(name(t.spread)),
                      "texts.spread");
  if (t.spread == text_spread::padded) return success();
  if (o.cost.sequence_tokens != 0)
    return from.blame("cost.sequence_tokens",
                      "expected 0 with texts.spread = " + job::in_quotes(name(t.spread)) +
                          ", got " + std::to_string(o.cost.sequence_tokens),
                      "texts.spread");
  if (model.text.positions == 0 || t.most <= model.text.positions) return success();
  return from.blame("texts.most",
                    "expected at most the " + std::to_string(model.text.positions) +
                        " positions of " + job::in_quotes(model.name) + ", got " +
                        std::to_string(t.most) + from.note("texts.most"),
                    "cost.preset");
}

status check_preset(const job::job& j, const job::provenance& from) {
  const auto model = preset(options_of(j).cost.preset);
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
    return from.blame("pipeline.tp",
                      expected + "of " + job::in_quotes(options_of(j).cost.preset) + ", got " +
                          std::to_string(j.pipeline.tp),
                      "cost.preset");
  }
  if (auto images = check_preset_images(j, *model, from); !images) return images;
  if (auto texts = check_texts(j, *model, from); !texts) return texts;
  if (const auto made = workload_of(j); !made)
    return from.blame(
        j.pipeline.cuts.kind == job::cut_kind::given ? "pipeline.cuts" : "pipeline.stages",
        made.message(), "cost.preset");
  return success();
}

}  // namespace

status check(const job::job& j, const job::provenance& from) {
  for (const auto holds :
       {check_messages, check_run_ahead, check_faults, check_unused_costs, check_preset})
    if (auto held = holds(j, from); !held) return held;
  return success();
}

}  // namespace rrfp::study

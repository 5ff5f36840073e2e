#include <rrfp/study/workload.hpp>

#include <cmath>

#include <rrfp/base/check.hpp>
#include <rrfp/study/options.hpp>
#include <rrfp/study/presets.hpp>

namespace rrfp::study {

namespace {

cut_rule rule_of(job::cut_kind kind) {
  switch (kind) {
    case job::cut_kind::automatic:
    case job::cut_kind::cost: return cut_rule::parts;
    case job::cut_kind::layers: return cut_rule::layers;
    case job::cut_kind::given: return cut_rule::given;
  }
  RRFP_CHECK(false, "unknown cut_kind");
}

}  // namespace

result<std::shared_ptr<const pipeline_cost>> workload_of(const job::job& j) {
  const auto& o = options_of(j);
  using made = std::shared_ptr<const pipeline_cost>;
  if (o.cost.preset.empty()) return made{};
  auto model = preset(o.cost.preset);
  RRFP_CHECK(model, "a checked job has a known preset");
  if (model->text.positions == 0 && o.cost.sequence_tokens != 0)
    model->sequence_tokens = o.cost.sequence_tokens;
  layout l;
  l.stages = j.pipeline.stages;
  l.tp = j.pipeline.tp;
  l.replicas = j.pipeline.replicas;
  l.samples = o.cost.samples;
  l.mean_images = static_cast<std::uint32_t>(std::lround(o.images.mean * o.cost.samples));
  if (o.texts.spread != text_spread::padded) {
    l.mean_tokens = mean_text(o.texts) * o.cost.samples;
    if (model->images)
      l.mean_tokens += double{1} * l.mean_images * model->images->tokens_per_image();
  }
  l.cut = rule_of(j.pipeline.cuts.kind);
  l.layers = j.pipeline.cuts.layers;
  for (std::uint32_t s = 0; s < l.stages; ++s) l.speeds.push_back(job::speed_of(j, stage_id{s}));
  auto cost = pipeline_cost::make(std::move(*model), o.machine, std::move(l));
  if (!cost) return cost.failure();
  return made{std::make_shared<const pipeline_cost>(std::move(*cost))};
}

}  // namespace rrfp::study

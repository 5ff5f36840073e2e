#include <rrfp/job/workload.hpp>

#include <cmath>

#include <rrfp/base/check.hpp>
#include <rrfp/workload/presets.hpp>

namespace rrfp::job {

namespace {

workload::cut_rule rule_of(cut_kind kind) {
  switch (kind) {
    case cut_kind::automatic:
    case cut_kind::cost: return workload::cut_rule::parts;
    case cut_kind::layers: return workload::cut_rule::layers;
    case cut_kind::given: return workload::cut_rule::given;
  }
  RRFP_CHECK(false, "unknown cut_kind");
}

}  // namespace

result<std::shared_ptr<const workload::pipeline_cost>> workload_of(const job& j) {
  using made = std::shared_ptr<const workload::pipeline_cost>;
  if (j.cost.preset.empty()) return made{};
  auto model = workload::preset(j.cost.preset);
  RRFP_CHECK(model, "a checked job has a known preset");
  if (model->text.positions == 0 && j.cost.sequence_tokens != 0)
    model->sequence_tokens = j.cost.sequence_tokens;
  workload::layout l;
  l.stages = j.pipeline.stages;
  l.tp = j.pipeline.tp;
  l.replicas = j.pipeline.replicas;
  l.samples = j.cost.samples;
  l.mean_images = static_cast<std::uint32_t>(std::lround(j.images.mean * j.cost.samples));
  if (j.texts.spread != workload::text_spread::padded) {
    l.mean_tokens = mean_text(j.texts) * j.cost.samples;
    if (model->images)
      l.mean_tokens += double{1} * l.mean_images * model->images->tokens_per_image();
  }
  l.cut = rule_of(j.pipeline.cuts.kind);
  l.layers = j.pipeline.cuts.layers;
  for (std::uint32_t s = 0; s < l.stages; ++s) l.speeds.push_back(speed_of(j, stage_id{s}));
  auto cost = workload::pipeline_cost::make(std::move(*model), j.machine, std::move(l));
  if (!cost) return cost.failure();
  return made{std::make_shared<const workload::pipeline_cost>(std::move(*cost))};
}

}  // namespace rrfp::job

#include <rrfp/experiment/cell_costs.hpp>

#include <algorithm>
#include <cmath>

#include <rrfp/base/check.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/workload/presets.hpp>

namespace rrfp::experiment {

namespace {

/// The share of the old average in the paper's e = 0.9 e + 0.1 c.
constexpr double past = 0.9;
/// 11 days: the tail of a heavy-tailed distribution is truncated there.
constexpr double duration_ms_max = 1e9;

simulate::nanoseconds nanoseconds_of(double ms) {
  return std::llround(std::clamp(ms, 0.0, duration_ms_max) * 1e6);
}

weather::conditions conditions_of(const cell& c, replica_id replica) {
  auto conditions = c.weather.conditions;
  conditions.jitter.seed = c.seed + (std::uint64_t{replica.value()} << 32);
  return conditions;
}

}  // namespace

result<cell_model> cell_model::make(const cell& c) {
  cell_model made{c};
  const auto& w = c.workload;
  if (w.options.preset.empty()) return made;
  auto model = workload::preset(w.options.preset);
  RRFP_CHECK(model, "a parsed workload has a known preset");
  if (w.options.sequence_tokens != 0) model->sequence_tokens = w.options.sequence_tokens;
  workload::layout l;
  l.stages = w.options.stages;
  l.tp = w.options.tp;
  l.replicas = w.options.replicas;
  l.samples = w.options.samples;
  l.mean_images = static_cast<std::uint32_t>(std::lround(w.images.mean * w.options.samples));
  auto cost = workload::pipeline_cost::make(std::move(*model), machine_of(w.machine), l);
  if (!cost) return cost.failure();
  made.model_ = std::make_shared<const workload::pipeline_cost>(std::move(*cost));
  return made;
}

pipeline_shape cell_model::shape() const {
  return {cell_.workload.options.stages, 1, cell_.workload.options.microbatches, placement::linear};
}

double cell_model::own_ms(stage_id stage, task_kind kind, std::uint32_t images) const {
  RRFP_CHECK(kind != task_kind::backward_weight, "pass B and W separately");
  const virtual_stage_id vs{stage.value()};
  const auto& given = cell_.workload.cost;
  switch (kind) {
    case task_kind::forward:
      return model_ ? model_->stage(stage, images).forward_ms
                    : job::cost_at(given.forward_ms, shape(), vs);
    case task_kind::backward:
      return model_ ? model_->stage(stage, images).backward_ms
                    : job::cost_at(given.backward_ms, shape(), vs);
    case task_kind::weight:
    case task_kind::backward_weight: break;
  }
  return model_ ? model_->stage(stage, images).weight_ms
                : job::cost_at(given.weight_ms, shape(), vs);
}

double cell_model::message_ms(stage_id lower, std::uint32_t images) const {
  return model_ ? model_->message_ms(lower, images) : cell_.workload.cost.link_ms;
}

std::uint64_t cell_model::activation_bytes(stage_id stage, std::uint32_t images) const {
  if (!model_) return 0;
  return static_cast<std::uint64_t>(model_->stage(stage, images).activation_bytes);
}

std::uint64_t cell_model::static_bytes(stage_id stage) const {
  return model_ ? static_cast<std::uint64_t>(model_->static_bytes(stage)) : 0;
}

std::vector<std::uint32_t> cell_model::images(step_id step, replica_id replica) const {
  const auto& w = cell_.workload;
  std::vector<std::uint32_t> counts(w.options.microbatches);
  if (!model_) return counts;
  for (std::uint32_t mb = 0; mb < w.options.microbatches; ++mb)
    counts[mb] = workload::images_of(w.images, cell_.seed, step,
                                     std::uint64_t{replica.value()} * w.options.microbatches + mb,
                                     w.options.samples);
  return counts;
}

step_costs::step_costs(const cell_model& model, step_id step, replica_id replica)
    : model_(model),
      step_(step),
      weather_(conditions_of(model.source(), replica), model.shape().microbatches),
      images_(model.images(step, replica)) {
  const auto shape = model.shape();
  std::vector<double> cost(shape.microbatches);
  for (std::uint32_t mb = 0; mb < shape.microbatches; ++mb)
    for (std::uint32_t s = 0; s < shape.stages; ++s)
      for (const auto kind : {task_kind::forward, task_kind::backward, task_kind::weight})
        cost[mb] += model.own_ms(stage_id{s}, kind, images_[mb]);
  order_ = admission_order(model.source().run.admit, cost);
  if (model.source().weather.conditions.jitter.compute != weather::compute_jitter::paper) return;
  for (std::uint32_t s = 0; s < shape.stages; ++s) {
    auto e = model.own_ms(stage_id{s}, task_kind::forward, images_[0]);
    const auto follow = [&](task_kind kind, std::uint32_t mb) {
      return e = past * e + (1 - past) * model.own_ms(stage_id{s}, kind, images_[mb]);
    };
    for (std::uint32_t mb = 0; mb < shape.microbatches; ++mb) {
      const auto after_forward = follow(task_kind::forward, mb);
      averages_.push_back({after_forward, follow(task_kind::backward, mb)});
      follow(task_kind::weight, mb);
    }
  }
}

task step_costs::as_loaded(task t) const {
  t.mb = microbatch_id{order_[t.mb.value()]};
  return t;
}

double step_costs::average_ms(stage_id stage, const task& loaded) const {
  if (averages_.empty()) return 0;
  const auto& a = averages_[std::size_t{stage.value()} * images_.size() + loaded.mb.value()];
  return loaded.kind == task_kind::forward ? a.forward_ms : a.backward_ms;
}

simulate::nanoseconds step_costs::compute(step_id, stage_id stage, const task& admitted) const {
  const auto t = as_loaded(admitted);
  const auto images = images_[t.mb.value()];
  const auto ranks = model_.source().workload.options.tp;
  const auto average = average_ms(stage, t);
  const auto own = [&](task_kind kind) { return model_.own_ms(stage, kind, images); };
  if (t.kind == task_kind::backward_weight)
    return nanoseconds_of(weather_.fused_ms(step_, stage, ranks, t, own(task_kind::backward),
                                            own(task_kind::weight), average));
  return nanoseconds_of(weather_.compute_ms(step_, stage, ranks, t, own(t.kind), average));
}

double step_costs::own_link_ms(virtual_stage_id to, const task& loaded) const {
  // A gradient arrives at the lower stage of its link.
  const auto lower = is_backward(loaded.kind) ? to.value() : to.value() - 1;
  return model_.message_ms(stage_id{lower}, images_[loaded.mb.value()]);
}

simulate::nanoseconds step_costs::link(step_id, virtual_stage_id to, const task& admitted) const {
  const auto t = as_loaded(admitted);
  return nanoseconds_of(weather_.link_ms(step_, stage_id{to.value()}, t, own_link_ms(to, t)) +
                        model_.source().run.notice_ms);
}

simulate::nanoseconds step_costs::travel(virtual_stage_id to, const task& admitted) const {
  const auto t = as_loaded(admitted);
  return nanoseconds_of(weather_.travel_ms(step_, stage_id{to.value()}, t, own_link_ms(to, t)) +
                        model_.source().run.notice_ms);
}

weather::message_delivery step_costs::delivery_of(virtual_stage_id to, const task& admitted) const {
  return weather_.delivery_of(step_, stage_id{to.value()}, as_loaded(admitted));
}

std::uint64_t step_costs::activation_bytes(stage_id stage, microbatch_id admitted) const {
  return model_.activation_bytes(stage, images_[order_[admitted.value()]]);
}

}  // namespace rrfp::experiment

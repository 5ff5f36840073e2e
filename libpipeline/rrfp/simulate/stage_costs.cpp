#include <rrfp/simulate/stage_costs.hpp>

#include <cmath>
#include <numeric>

#include <rrfp/base/check.hpp>

#include "milliseconds.hpp"

namespace rrfp::simulate {

namespace {

/// The share of the old average in the paper's e = 0.9 e + 0.1 c.
constexpr double past = 0.9;

double follow(double average, double duration) { return past * average + (1 - past) * duration; }

/// The lower stage of the link, where a gradient arrives.
stage_id lower_stage(virtual_stage_id to, const task& t) {
  return stage_id{is_backward(t.kind) ? to.value() : to.value() - 1};
}

double fused_ms(const task_durations& d) { return d.backward_ms + d.weight_ms; }

/// The average after F and BW.
double follow_all(double average, const task_durations& d) {
  return follow(follow(average, d.forward_ms), fused_ms(d));
}

}  // namespace

stage_costs::stage_costs(const pipeline_shape& shape, stage_costs_options options)
    : shape_(shape),
      options_(std::move(options)),
      jitter_(options_.jitter, shape, options_.ranks),
      views_(std::make_shared<last_steps<step_view>>()) {
  const auto& given = options_.durations;
  RRFP_CHECK(
      given.size() == 1 || given.size() == shape.stages || given.size() == shape.virtual_stages(),
      "durations of all stages, of each stage, or of each virtual stage");
  RRFP_CHECK(options_.by_microbatch == nullptr || shape.chunks == 1,
             "costs by microbatch are those of stages with one chunk");
  const auto kept_share = std::pow(past, 2.0 * shape.chunks);
  for (std::uint32_t s = 0; s < shape.stages; ++s) {
    double rest = 0;
    for (std::uint32_t c = 0; c < shape.chunks; ++c) {
      const auto vs = shape.virtual_stage(stage_id{s}, chunk_id{c}).value();
      durations_.push_back(given[given.size() == 1 ? 0 : given.size() == shape.stages ? s : vs]);
      rest = follow_all(rest, durations_.back());
    }
    // One microbatch maps e to kept_share * e + rest; this is the fixed point of that map.
    fixed_point_ms_.push_back(rest / (1 - kept_share));
  }
}

const task_durations& stage_costs::durations_of(stage_id stage, chunk_id chunk) const {
  return durations_[std::size_t{stage.value()} * shape_.chunks + chunk.value()];
}

/// In closed form: e approaches its fixed point geometrically with each microbatch.
double stage_costs::closed_form_ms(stage_id stage, const task& t) const {
  const auto fixed_point = fixed_point_ms_[stage.value()];
  const auto first = durations_of(stage, chunk_id{0}).forward_ms;
  const auto tasks_before = 2.0 * shape_.chunks * t.mb.value();
  auto e = fixed_point + (first - fixed_point) * std::pow(past, tasks_before);
  for (std::uint32_t c = 0; c < t.chunk.value(); ++c)
    e = follow_all(e, durations_of(stage, chunk_id{c}));
  const auto& d = durations_of(stage, t.chunk);
  e = follow(e, d.forward_ms);
  return t.kind == task_kind::forward ? e : follow(e, fused_ms(d));
}

std::shared_ptr<const stage_costs::step_view> stage_costs::view_of(step_id step) const {
  const bool needs_averages =
      options_.by_microbatch != nullptr && simulate::has_paper(options_.jitter.compute);
  if (options_.admit == admission::loaded && !needs_averages) return nullptr;
  return views_->at(step.value(), [&] { return make_view(step); });
}

stage_costs::step_view stage_costs::make_view(step_id step) const {
  const auto at = [&](stage_id stage, chunk_id chunk, task_kind kind, std::uint32_t mb) {
    return own_ms(step, stage, {kind, microbatch_id{mb}, chunk});
  };
  constexpr task_kind kinds[] = {task_kind::forward, task_kind::backward, task_kind::weight};
  step_view view;
  std::vector<double> cost(shape_.microbatches);
  for (std::uint32_t mb = 0; mb < shape_.microbatches; ++mb)
    for (std::uint32_t s = 0; s < shape_.stages; ++s)
      for (std::uint32_t c = 0; c < shape_.chunks; ++c)
        for (const auto kind : kinds) cost[mb] += at(stage_id{s}, chunk_id{c}, kind, mb);
  view.order = admission_order(options_.admit, cost);
  if (options_.by_microbatch == nullptr) return view;
  for (std::uint32_t s = 0; s < shape_.stages; ++s) {
    const auto own = [&](task_kind kind, std::uint32_t mb) {
      return at(stage_id{s}, chunk_id{0}, kind, mb);
    };
    auto e = own(task_kind::forward, 0);
    for (std::uint32_t mb = 0; mb < shape_.microbatches; ++mb) {
      const auto after_forward = e = follow(e, own(task_kind::forward, mb));
      e = follow(e, own(task_kind::backward, mb) + own(task_kind::weight, mb));
      view.average.push_back({after_forward, e});
    }
  }
  return view;
}

std::vector<std::uint32_t> stage_costs::order_of(step_id step) const {
  if (const auto view = view_of(step)) return view->order;
  std::vector<std::uint32_t> loaded(shape_.microbatches);
  std::iota(loaded.begin(), loaded.end(), 0U);
  return loaded;
}

task stage_costs::as_loaded(step_id step, task t) const {
  if (options_.admit == admission::loaded) return t;
  t.mb = microbatch_id{view_of(step)->order[t.mb.value()]};
  return t;
}

double stage_costs::own_ms(step_id step, stage_id stage, const task& t) const {
  if (options_.by_microbatch) return options_.by_microbatch->task_ms(step, stage, t.kind, t.mb);
  const auto& d = durations_of(stage, t.chunk);
  return t.kind == task_kind::forward    ? d.forward_ms
         : t.kind == task_kind::backward ? d.backward_ms
                                         : d.weight_ms;
}

double stage_costs::average_ms(const step_view* view, stage_id stage, const task& t) const {
  if (!simulate::has_paper(options_.jitter.compute)) return 0;
  if (options_.by_microbatch == nullptr) return closed_form_ms(stage, t);
  const auto& a = view->average[std::size_t{stage.value()} * shape_.microbatches + t.mb.value()];
  return t.kind == task_kind::forward ? a.forward_ms : a.backward_ms;
}

rank_id stage_costs::drawn_rank(rank_id rank) const {
  return options_.jitter.ranks == simulate::rank_delays::apart ? rank : rank_id{0};
}

nanoseconds stage_costs::compute(step_id step, stage_id stage, const task& admitted) const {
  return compute_of(step, stage, {0, options_.ranks}, admitted);
}

nanoseconds stage_costs::compute_of_rank(step_id step, stage_id stage, rank_id rank,
                                         const task& admitted) const {
  if (options_.jitter.ranks == simulate::rank_delays::together)
    return compute(step, stage, admitted);
  return compute_of(step, stage, {rank.value(), 1}, admitted);
}

nanoseconds stage_costs::compute_of(step_id step, stage_id stage, simulate::rank_range ranks,
                                    const task& admitted) const {
  const auto view = view_of(step);
  auto t = admitted;
  if (view) t.mb = microbatch_id{view->order[t.mb.value()]};
  const auto duration =
      nanoseconds_of(disturbed_ms(step, stage, ranks, t, average_ms(view.get(), stage, t)));
  return options_.delays ? duration + options_.delays->compute(step, stage, t) : duration;
}

double stage_costs::disturbed_ms(step_id step, stage_id stage, simulate::rank_range ranks,
                                 const task& t, double average) const {
  if (t.kind != task_kind::backward_weight)
    return jitter_.compute_ms(step, stage, ranks, t, own_ms(step, stage, t), average);
  const auto part = [&](task_kind kind) { return own_ms(step, stage, {kind, t.mb, t.chunk}); };
  return jitter_.fused_ms(step, stage, ranks, t, part(task_kind::backward), part(task_kind::weight),
                          average);
}

double stage_costs::own_link_ms(step_id step, virtual_stage_id to, const task& t) const {
  if (!options_.by_microbatch)
    return t.kind == task_kind::forward ? options_.activation_ms : options_.gradient_ms;
  return options_.by_microbatch->message_ms(step, lower_stage(to, t), t.mb);
}

double stage_costs::shape_ms(step_id step, virtual_stage_id to, rank_id rank, const task& t) const {
  if (!options_.by_microbatch) return 0;
  const auto own = options_.by_microbatch->shape_ms(lower_stage(to, t));
  return own ? jitter_.shape_ms(step, to, rank, t, *own) : 0;
}

nanoseconds stage_costs::link(step_id step, virtual_stage_id to, const task& admitted) const {
  return link_of_rank(step, to, rank_id{0}, admitted);
}

nanoseconds stage_costs::link_of_rank(step_id step, virtual_stage_id to, rank_id rank,
                                      const task& admitted) const {
  const auto t = as_loaded(step, admitted);
  const auto of = drawn_rank(rank);
  const auto duration = nanoseconds_of(shape_ms(step, to, of, t) +
                                       jitter_.link_ms(step, to, of, t, own_link_ms(step, to, t)));
  return options_.delays ? duration + options_.delays->link(step, to, t) : duration;
}

std::uint64_t stage_costs::activation_bytes(step_id step, stage_id stage, microbatch_id mb) const {
  RRFP_CHECK(has_bytes(), "only costs by microbatch count bytes");
  const auto loaded = as_loaded(step, {task_kind::forward, mb, chunk_id{0}});
  return options_.by_microbatch->activation_bytes(step, stage, loaded.mb);
}

std::uint64_t stage_costs::message_bytes(step_id step, virtual_stage_id to,
                                         const task& admitted) const {
  RRFP_CHECK(has_bytes(), "only costs by microbatch count bytes");
  const auto t = as_loaded(step, admitted);
  return options_.by_microbatch->message_bytes(step, lower_stage(to, t), t.mb);
}

stage_costs stage_costs::undisturbed() const {
  auto undisturbed_options = options_;
  undisturbed_options.jitter = {};
  undisturbed_options.delays = nullptr;
  return {shape_, std::move(undisturbed_options)};
}

}  // namespace rrfp::simulate

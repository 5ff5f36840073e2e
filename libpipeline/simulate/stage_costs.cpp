#include <rrfp/simulate/stage_costs.hpp>

#include <cmath>
#include <string>

#include "milliseconds.hpp"

namespace rrfp::simulate {

namespace {

/// The share of the old average in the paper's e = 0.9 e + 0.1 c.
constexpr double past = 0.9;

double follow(double average, double duration) { return past * average + (1 - past) * duration; }

/// The average after F, B and W.
double follow_all(double average, const task_durations& d) {
  return follow(follow(follow(average, d.forward_ms), d.backward_ms), d.weight_ms);
}

status check_duration(const std::string& key, double ms) {
  if (is_duration_ms(ms)) return success();
  return error{key + ": expected " + duration_ms_range + ", got " + std::to_string(ms)};
}

status check_durations(const std::string& key, const task_durations& d) {
  if (auto ok = check_duration(key + "forward_ms", d.forward_ms); !ok) return ok;
  if (auto ok = check_duration(key + "backward_ms", d.backward_ms); !ok) return ok;
  if (auto ok = check_duration(key + "weight_ms", d.weight_ms); !ok) return ok;
  return check_duration(key + "backward_weight_ms", d.backward_weight_ms.value_or(0));
}

}  // namespace

result<stage_costs> stage_costs::make(const pipeline_shape& shape, stage_costs_options options) {
  if (auto valid = shape.validate(); !valid) return valid.failure();
  const auto entries = options.durations.size();
  if (entries != 1 && entries != shape.stages && entries != shape.virtual_stages())
    return error{"durations: expected 1 entry, one for each of " + std::to_string(shape.stages) +
                 " stages, or one for each of " + std::to_string(shape.virtual_stages()) +
                 " virtual stages, got " + std::to_string(entries)};
  for (std::size_t i = 0; i < entries; ++i) {
    const auto key = "durations, entry " + std::to_string(i) + ", ";
    if (auto ok = check_durations(key, options.durations[i]); !ok) return ok.failure();
  }
  if (auto ok = check_duration("activation_ms", options.activation_ms); !ok) return ok.failure();
  if (auto ok = check_duration("gradient_ms", options.gradient_ms); !ok) return ok.failure();
  if (auto ok = weather::validate(options.jitter); !ok) return ok.failure();
  return stage_costs{shape, std::move(options)};
}

stage_costs::stage_costs(const pipeline_shape& shape, stage_costs_options options)
    : shape_(shape), options_(std::move(options)), jitter_(options_.jitter) {
  const auto& given = options_.durations;
  const auto kept_share = std::pow(past, 3.0 * shape.chunks);
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
double stage_costs::average_ms(stage_id stage, const task& t) const {
  const auto fixed_point = fixed_point_ms_[stage.value()];
  const auto first = durations_of(stage, chunk_id{0}).forward_ms;
  const auto tasks_before = 3.0 * shape_.chunks * t.mb.value();
  auto e = fixed_point + (first - fixed_point) * std::pow(past, tasks_before);
  for (std::uint32_t c = 0; c < t.chunk.value(); ++c)
    e = follow_all(e, durations_of(stage, chunk_id{c}));
  const auto& d = durations_of(stage, t.chunk);
  e = follow(e, d.forward_ms);
  if (t.kind == task_kind::forward) return e;
  e = follow(e, d.backward_ms);
  return t.kind == task_kind::weight ? follow(e, d.weight_ms) : e;
}

nanoseconds stage_costs::compute(step_id step, stage_id stage, const task& t) const {
  const auto duration = disturbed(step, stage, t);
  return options_.delays ? duration + options_.delays->compute(step, stage, t) : duration;
}

nanoseconds stage_costs::disturbed(step_id step, stage_id stage, const task& t) const {
  const auto& d = durations_of(stage, t.chunk);
  const bool needs_average = options_.jitter.compute == weather::compute_jitter::paper;
  const auto average = needs_average ? average_ms(stage, t) : 0.0;
  const auto jittered = [&](double ms) {
    return nanoseconds_of(ms + jitter_.compute_extra_ms(step, stage, rank_id{0}, t, ms, average));
  };
  switch (t.kind) {
    case task_kind::forward: return jittered(d.forward_ms);
    case task_kind::backward: return jittered(d.backward_ms);
    case task_kind::weight: return jittered(d.weight_ms);
    case task_kind::backward_weight: break;
  }
  const auto parts = d.backward_ms + d.weight_ms;
  const auto whole = d.backward_weight_ms.value_or(parts);
  // A fused kernel may be faster than its parts; the saving is then split in proportion.
  const auto share = parts == 0 ? 0.5 : d.backward_ms / parts;
  return nanoseconds_of(whole + jitter_.fused_extra_ms(step, stage, rank_id{0}, t, whole * share,
                                                       whole * (1 - share), average));
}

nanoseconds stage_costs::link(step_id step, virtual_stage_id to, const task& t) const {
  const auto ms = t.kind == task_kind::forward ? options_.activation_ms : options_.gradient_ms;
  const auto duration = nanoseconds_of(ms + jitter_.link_extra_ms(step, to, t));
  return options_.delays ? duration + options_.delays->link(step, to, t) : duration;
}

stage_costs stage_costs::undisturbed() const {
  auto undisturbed_options = options_;
  undisturbed_options.jitter = weather::jitter_options{};
  undisturbed_options.delays = nullptr;
  return {shape_, std::move(undisturbed_options)};
}

}  // namespace rrfp::simulate

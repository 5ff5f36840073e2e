#include <rrfp/simulate/conditions.hpp>

#include <algorithm>
#include <cmath>

#include <rrfp/base/enum_names.hpp>
#include <rrfp/simulate/keyed_random.hpp>

#include "salt.hpp"

namespace rrfp::weather {

std::string_view name(link_spread s) { return name_in({"none", "lognormal", "stalls"}, s); }

std::string_view name(rank_delays d) { return name_in({"together", "apart"}, d); }

std::optional<conditions> conditions_of(std::string_view name) {
  conditions c;
  if (name == "none") return c;
  if (name.size() == 2 && name[0] == 'J' && name[1] >= '0' && name[1] <= '3') {
    const auto level = name[1] - '0';
    if (level == 0) return c;
    c.compute = compute_jitter::paper;
    c.probability = level / 10.0;
    c.floor_ms = 5.0 * level;
    c.alpha = 0.5 * level;
    return c;
  }
  if (name != "measured" && name != "measured-lognormal") return std::nullopt;
  c.compute = compute_jitter::lognormal;
  c.compute_sigma = measured_compute_sigma;
  c.spread = name == "measured" ? link_spread::stalls : link_spread::lognormal;
  return c;
}

bool disturbs_tasks(const conditions& c) {
  return c.compute != compute_jitter::none || c.straggler_factor != 1 || c.pause_ms != 0;
}

bool disturbs_messages(const conditions& c) {
  return c.link != link_jitter::none || c.spread != link_spread::none || c.slow_link_factor != 1 ||
         c.loss_probability > 0;
}

double disturbed_times::compute_ms(step_id step, stage_id stage, rank_range ranks, const task& t,
                                   double own_ms, double average_ms) const {
  const auto of_rank = [&](std::uint32_t r) {
    return own_ms + jitter_.compute_extra_ms(step, stage, rank_id{r}, t, own_ms, average_ms);
  };
  auto slowest = of_rank(ranks.first);
  for (std::uint32_t i = 1; i < ranks.count; ++i)
    slowest = std::max(slowest, of_rank(ranks.first + i));
  return place_ms(step, stage, ranks, t, slowest);
}

double disturbed_times::fused_ms(step_id step, stage_id stage, rank_range ranks, const task& t,
                                 double backward_ms, double weight_ms, double average_ms) const {
  // Each part separately, because the ranks of a stage meet inside each part.
  auto part = t;
  part.kind = task_kind::backward;
  const auto first = compute_ms(step, stage, ranks, part, backward_ms, average_ms);
  part.kind = task_kind::weight;
  return first + compute_ms(step, stage, ranks, part, weight_ms, average_ms);
}

double disturbed_times::place_ms(step_id step, stage_id stage, rank_range ranks, const task& t,
                                 double ms) const {
  const auto& c = conditions_;
  if (stage.value() == c.straggler_stage) ms *= c.straggler_factor;
  if (c.pause_ms == 0 || stage.value() != c.pause_stage || t.kind != task_kind::forward ||
      t.chunk.value() != 0)
    return ms;
  keyed_random random{c.seed, static_cast<std::uint64_t>(salt::pause), step.value(), stage.value()};
  const auto chosen = static_cast<std::uint32_t>(random.uniform() * shape_.microbatches);
  if (t.mb.value() != chosen) return ms;
  const auto rank = static_cast<std::uint32_t>(random.uniform() * ranks_);
  return rank >= ranks.first && rank < ranks.first + ranks.count ? ms + c.pause_ms : ms;
}

double disturbed_times::spread_ms(salt purpose, step_id step, virtual_stage_id to, rank_id rank,
                                  const task& t, double own_ms) const {
  const auto& c = conditions_;
  if (c.spread == link_spread::none) return own_ms;
  auto random = message_draws(c.seed, purpose, step, to, rank, t);
  if (c.spread == link_spread::lognormal)
    return own_ms * std::exp(measured_link_sigma * random.normal());
  if (random.uniform() >= c.stall_probability) return own_ms;
  const auto unit_ms = c.stall_unit_ms > 0 ? c.stall_unit_ms : own_ms;
  return own_ms + unit_ms * c.stall_factor * std::pow(1 - random.uniform(), -1 / c.stall_alpha);
}

double disturbed_times::link_ms(step_id step, virtual_stage_id to, rank_id rank, const task& t,
                                double own_ms) const {
  const auto& c = conditions_;
  auto ms =
      spread_ms(salt::spread, step, to, rank, t, own_ms) + jitter_.link_extra_ms(step, to, rank, t);
  if (c.slow_link_factor != 1 && is_slow_link(to, t)) ms *= c.slow_link_factor;
  return losses_of(step, to, rank, t) * c.resend_ms + ms;
}

std::uint32_t disturbed_times::losses_of(step_id step, virtual_stage_id to, rank_id rank,
                                         const task& t) const {
  constexpr std::uint32_t losses_max = 1000;
  const auto& c = conditions_;
  if (c.loss_probability == 0) return 0;
  auto random = message_draws(c.seed, salt::loss, step, to, rank, t);
  std::uint32_t losses = 0;
  while (losses < losses_max && random.uniform() < c.loss_probability) ++losses;
  return losses;
}

bool disturbed_times::is_slow_link(virtual_stage_id to, const task& t) const {
  const virtual_stage_id from{is_backward(t.kind) ? to.value() + 1 : to.value() - 1};
  const auto [lower, upper] =
      std::minmax({shape_.at(from).stage.value(), shape_.at(to).stage.value()});
  return lower == conditions_.slow_link_stage && upper == lower + 1;
}

double disturbed_times::shape_ms(step_id step, virtual_stage_id to, rank_id rank, const task& t,
                                 double own_ms) const {
  const auto& c = conditions_;
  const auto ms = spread_ms(salt::shape, step, to, rank, t, own_ms);
  return c.slow_link_factor != 1 && is_slow_link(to, t) ? ms * c.slow_link_factor : ms;
}

}  // namespace rrfp::weather

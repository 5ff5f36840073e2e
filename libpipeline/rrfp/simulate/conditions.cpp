#include <rrfp/simulate/conditions.hpp>

#include <algorithm>
#include <cmath>

#include <rrfp/base/check.hpp>
#include <rrfp/base/enum_names.hpp>
#include <rrfp/simulate/keyed_random.hpp>

namespace rrfp::simulate {

/// The purpose of a draw. Draws with different salts are independent.
enum class salt : std::uint64_t {
  compute = 1,
  link = 2,
  spread = 3,
  pause = 4,
  loss = 5,
  shape = 7
};

namespace {

constexpr std::uint64_t pack(std::uint32_t high, std::uint32_t low) {
  return std::uint64_t{high} << 32 | low;
}

/// Those for the message that carries the input of `t` to a rank of virtual stage `to`, which
/// implies the chunk. How the policy splits backward must not matter.
keyed_random message_draws(std::uint64_t seed, salt purpose, step_id step, virtual_stage_id to,
                           rank_id rank, const task& t) {
  return {seed, static_cast<std::uint64_t>(purpose), step.value(),
          pack(to.value(), is_backward(t.kind) ? 1 : 0), pack(rank.value(), t.mb.value())};
}

/// Log-normal with mean 1.
double lognormal(keyed_random& random, double sigma) {
  return std::exp(sigma * random.normal() - sigma * sigma / 2);
}

/// A fused backward uses the draws of the B that it contains.
task_kind key_kind(task_kind kind) {
  return kind == task_kind::backward_weight ? task_kind::backward : kind;
}

bool has_lognormal(compute_jitter kind) {
  return kind == compute_jitter::lognormal || kind == compute_jitter::lognormal_and_paper;
}

}  // namespace

std::string_view name(compute_jitter kind) {
  return name_in({"none", "lognormal", "paper", "lognormal+paper"}, kind);
}

bool has_paper(compute_jitter kind) {
  return kind == compute_jitter::paper || kind == compute_jitter::lognormal_and_paper;
}

std::string_view name(link_jitter kind) {
  return name_in({"none", "constant", "exponential", "lognormal", "pareto"}, kind);
}

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

double disturbed_times::compute_extra_ms(step_id step, stage_id stage, rank_id rank, const task& t,
                                         double expected_ms, double average_ms) const {
  if (conditions_.compute == compute_jitter::none) return 0;
  keyed_random random{conditions_.seed,
                      static_cast<std::uint64_t>(salt::compute),
                      step.value(),
                      pack(stage.value(), rank.value()),
                      pack(t.chunk.value(), static_cast<std::uint32_t>(key_kind(t.kind))),
                      t.mb.value()};
  double extra = 0;
  if (has_lognormal(conditions_.compute))
    extra = expected_ms * (lognormal(random, conditions_.compute_sigma) - 1);
  // Only B and BW are delayed; delaying W as well would make split backward slower than fused.
  if (!has_paper(conditions_.compute) || t.kind == task_kind::weight) return extra;
  if (random.uniform() >= conditions_.probability) return extra;
  return extra +
         conditions_.alpha * std::max(conditions_.floor_ms, average_ms) * (0.5 + random.uniform());
}

double disturbed_times::link_extra_ms(step_id step, virtual_stage_id to, rank_id rank,
                                      const task& t) const {
  if (conditions_.link == link_jitter::none || conditions_.link_mean_ms == 0) return 0;
  if (conditions_.link == link_jitter::constant) return conditions_.link_mean_ms;
  RRFP_CHECK(t.kind != task_kind::weight, "a weight gradient is never sent to another stage");
  auto random = message_draws(conditions_.seed, salt::link, step, to, rank, t);
  const auto mean = conditions_.link_mean_ms;
  switch (conditions_.link) {
    case link_jitter::none:
    case link_jitter::constant: break;
    case link_jitter::exponential: return -mean * std::log1p(-random.uniform());
    case link_jitter::lognormal: return mean * lognormal(random, conditions_.link_sigma);
    case link_jitter::pareto: {
      const auto alpha = conditions_.link_alpha;
      return mean * (alpha - 1) / alpha * std::pow(1 - random.uniform(), -1 / alpha);
    }
  }
  RRFP_CHECK(false, "unknown link jitter");
}

double disturbed_times::compute_ms(step_id step, stage_id stage, rank_range ranks, const task& t,
                                   double own_ms, double average_ms) const {
  const auto of_rank = [&](std::uint32_t r) {
    return own_ms + compute_extra_ms(step, stage, rank_id{r}, t, own_ms, average_ms);
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
  auto ms = spread_ms(salt::spread, step, to, rank, t, own_ms) + link_extra_ms(step, to, rank, t);
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

}  // namespace rrfp::simulate

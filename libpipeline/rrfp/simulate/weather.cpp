#include <rrfp/simulate/weather.hpp>

#include <algorithm>
#include <cmath>

#include <rrfp/base/check.hpp>
#include <rrfp/base/enum_names.hpp>
#include <rrfp/simulate/keyed_random.hpp>

#include "salt.hpp"

namespace rrfp::weather {

namespace {

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

double jitter_model::compute_extra_ms(step_id step, stage_id stage, rank_id rank, const task& t,
                                      double expected_ms, double average_ms) const {
  if (options_.compute == compute_jitter::none) return 0;
  keyed_random random{options_.seed,
                      static_cast<std::uint64_t>(salt::compute),
                      step.value(),
                      pack(stage.value(), rank.value()),
                      pack(t.chunk.value(), static_cast<std::uint32_t>(key_kind(t.kind))),
                      t.mb.value()};
  double extra = 0;
  if (has_lognormal(options_.compute))
    extra = expected_ms * (lognormal(random, options_.compute_sigma) - 1);
  // Only B and BW are delayed; delaying W as well would make split backward slower than fused.
  if (!has_paper(options_.compute) || t.kind == task_kind::weight) return extra;
  if (random.uniform() >= options_.probability) return extra;
  return extra +
         options_.alpha * std::max(options_.floor_ms, average_ms) * (0.5 + random.uniform());
}

double jitter_model::link_extra_ms(step_id step, virtual_stage_id to, rank_id rank,
                                   const task& t) const {
  if (options_.link == link_jitter::none || options_.link_mean_ms == 0) return 0;
  if (options_.link == link_jitter::constant) return options_.link_mean_ms;
  RRFP_CHECK(t.kind != task_kind::weight, "a weight gradient is never sent to another stage");
  auto random = message_draws(options_.seed, salt::link, step, to, rank, t);
  const auto mean = options_.link_mean_ms;
  switch (options_.link) {
    case link_jitter::none:
    case link_jitter::constant: break;
    case link_jitter::exponential: return -mean * std::log1p(-random.uniform());
    case link_jitter::lognormal: return mean * lognormal(random, options_.link_sigma);
    case link_jitter::pareto: {
      const auto alpha = options_.link_alpha;
      return mean * (alpha - 1) / alpha * std::pow(1 - random.uniform(), -1 / alpha);
    }
  }
  RRFP_CHECK(false, "unknown link jitter");
}

}  // namespace rrfp::weather

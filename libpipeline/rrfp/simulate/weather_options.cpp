#include <rrfp/simulate/weather.hpp>

namespace rrfp::weather {

std::string_view name(compute_jitter kind) {
  switch (kind) {
    case compute_jitter::none: return "none";
    case compute_jitter::lognormal: return "lognormal";
    case compute_jitter::paper: return "paper";
    case compute_jitter::lognormal_and_paper: return "lognormal+paper";
  }
  return "?";
}

bool has_lognormal(compute_jitter kind) {
  return kind == compute_jitter::lognormal || kind == compute_jitter::lognormal_and_paper;
}

bool has_paper(compute_jitter kind) {
  return kind == compute_jitter::paper || kind == compute_jitter::lognormal_and_paper;
}

std::string_view name(link_jitter kind) {
  switch (kind) {
    case link_jitter::none: return "none";
    case link_jitter::constant: return "constant";
    case link_jitter::exponential: return "exponential";
    case link_jitter::lognormal: return "lognormal";
    case link_jitter::pareto: return "pareto";
  }
  return "?";
}

std::optional<jitter_options> jitter_level(std::string_view level, std::uint64_t seed) {
  if (level.size() != 2 || level[0] != 'J' || level[1] < '0' || level[1] > '3') return std::nullopt;
  jitter_options options;
  options.seed = seed;
  const auto number = level[1] - '0';
  if (number == 0) return options;
  options.compute = compute_jitter::paper;
  options.probability = number / 10.0;
  options.floor_ms = 5.0 * number;
  options.alpha = 0.5 * number;
  return options;
}

}  // namespace rrfp::weather

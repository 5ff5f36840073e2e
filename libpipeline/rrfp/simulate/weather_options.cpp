#include <rrfp/simulate/weather.hpp>

#include <cmath>
#include <string>

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

status validate(const jitter_options& options) {
  const auto bad = [](const char* key, const char* expected, double got) {
    return error{std::string(key) + ": expected " + expected + ", got " + std::to_string(got)};
  };
  const auto nonnegative = [](double x) { return std::isfinite(x) && x >= 0; };
  constexpr auto number = "a finite number >= 0";
  if (!nonnegative(options.compute_sigma))
    return bad("compute_sigma", number, options.compute_sigma);
  if (!(options.probability >= 0 && options.probability <= 1))
    return bad("probability", "a number from 0 to 1", options.probability);
  if (!nonnegative(options.floor_ms)) return bad("floor_ms", number, options.floor_ms);
  if (!nonnegative(options.alpha)) return bad("alpha", number, options.alpha);
  if (!nonnegative(options.link_mean_ms)) return bad("link_mean_ms", number, options.link_mean_ms);
  if (!nonnegative(options.link_sigma)) return bad("link_sigma", number, options.link_sigma);
  if (!(std::isfinite(options.link_alpha) && options.link_alpha > 1))
    return bad("link_alpha", "a finite number > 1 (otherwise the mean is infinite)",
               options.link_alpha);
  return success();
}

}  // namespace rrfp::weather

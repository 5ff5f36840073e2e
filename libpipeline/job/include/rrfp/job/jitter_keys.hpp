/// The keys of weather::jitter_options, shared by jobs and experiments.
#pragma once

#include <rrfp/job/key_types.hpp>
#include <rrfp/weather/weather.hpp>

namespace rrfp::job {

/// `keys` is a basic_section_keys whose section is weather::jitter_options. Does not add the seed:
/// a job sets it once, an experiment varies it.
template <class Keys>
void add_jitter_keys(Keys& keys) {
  using o = weather::jitter_options;
  using weather::compute_jitter;
  using weather::link_jitter;
  constexpr double ms_max = 1e6;
  keys.choice(
      "compute", &o::compute,
      {name(compute_jitter::none), name(compute_jitter::lognormal), name(compute_jitter::paper)},
      "Distribution of the delay of a task. `lognormal`: the task takes its expected time "
      "multiplied by a log-normal factor of mean 1. `paper`: with `probability`, a task F, B or BW "
      "takes `alpha` * max(`floor_ms`, average task time of the stage) * U longer, with U uniform "
      "in [0.5, 1.5).");
  keys.number("compute_sigma", &o::compute_sigma, {0, 10}, "",
              "lognormal: standard deviation of the logarithm.");
  keys.number("probability", &o::probability, {0, 1}, "",
              "paper: share of tasks that are delayed.");
  keys.number("floor_ms", &o::floor_ms, {0, ms_max}, "ms",
              "paper: minimum of the task time that scales the delay.");
  keys.number("alpha", &o::alpha, {0, 1e3}, "", "paper: factor on the delay.");
  keys.choice("link", &o::link,
              {name(link_jitter::none), name(link_jitter::constant), name(link_jitter::exponential),
               name(link_jitter::lognormal), name(link_jitter::pareto)},
              "Distribution of the extra time of a message.");
  keys.number("link_mean_ms", &o::link_mean_ms, {0, ms_max}, "ms", "Mean extra time of a message.");
  keys.number("link_sigma", &o::link_sigma, {0, 10}, "",
              "lognormal: standard deviation of the logarithm.");
  keys.number("link_alpha", &o::link_alpha, {1, 1e3, true, false}, "",
              "pareto: tail index; smaller values have heavier tails.");
}

}  // namespace rrfp::job

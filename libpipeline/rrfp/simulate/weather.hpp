/// [jitter] The jitter of a run. Every delay is a function of (seed, step, stage, rank,
/// task), never of the order of execution, so runs in both dispatch modes get the same delays.
#pragma once

#include <cstdint>
#include <string_view>

#include <rrfp/core/task.hpp>

namespace rrfp::weather {

/// none: no disturbance.
/// lognormal: multiplies each duration by a log-normal factor with mean 1.
/// paper: with `probability`, delays a task by alpha * max(floor_ms, e) * (0.5 + U(0,1)), where e
/// is the moving average of the durations c of the stage's F and fused BW, e = 0.9 e + 0.1 c (arXiv
/// 2605.18750, section on robustness); J1 = (.1, 5 ms, .5), J2 = (.2, 10 ms, 1.0), J3 = (.3, 15
/// ms, 1.5). Delays F and backwards, fused or split, but no W: otherwise splitting W off would add
/// delays. lognormal_and_paper: the paper's delays on a machine that varies by itself.
enum class compute_jitter : std::uint8_t { none, lognormal, paper, lognormal_and_paper };

bool has_paper(compute_jitter kind);

/// Distribution of the extra time that a message takes on its link: constant, exponential,
/// lognormal (same mean, spread sigma) or pareto (same mean, tail index alpha > 1).
enum class link_jitter : std::uint8_t { none, constant, exponential, lognormal, pareto };

struct jitter_options {
  std::uint64_t seed = 1;

  compute_jitter compute = compute_jitter::none;
  /// lognormal: standard deviation of the logarithm.
  double compute_sigma = 0.3;
  /// paper: see compute_jitter.
  double probability = 0.1;
  double floor_ms = 5.0;
  double alpha = 0.5;

  link_jitter link = link_jitter::none;
  /// Mean of the extra time, in milliseconds.
  double link_mean_ms = 0.0;
  /// lognormal: standard deviation of the logarithm.
  double link_sigma = 1.0;
  /// pareto: tail index, > 1; smaller is heavier.
  double link_alpha = 1.5;
};

/// The values of the job file: "lognormal", "paper", ...
std::string_view name(compute_jitter kind);
std::string_view name(link_jitter kind);

/// Thread-safe: holds only its options, which must be in the ranges of [jitter]. All times are in
/// milliseconds.
class jitter_model {
 public:
  explicit jitter_model(const jitter_options& options) : options_(options) {}

  /// Extra time of a task of expected duration `expected_ms`. Log-normal jitter may be negative,
  /// but never below -expected_ms. `average_ms` is the e of the paper's formula. A BW gets the
  /// draws of its B.
  double compute_extra_ms(step_id step, stage_id stage, rank_id rank, const task& t,
                          double expected_ms, double average_ms) const;

  /// Extra time, >= 0, of the message that carries the input of `t` (F: activation, B or BW:
  /// gradient) to a rank of `to`. Messages on one link are independent: a later one may overtake an
  /// earlier one.
  double link_extra_ms(step_id step, virtual_stage_id to, rank_id rank, const task& t) const;

 private:
  jitter_options options_;
};

}  // namespace rrfp::weather

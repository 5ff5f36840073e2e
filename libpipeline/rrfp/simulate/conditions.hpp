/// [jitter] All disturbances of a run: jitter of tasks and messages, and single stages or links
/// that are slower than the rest. Each is a function of (seed, step, stage, rank, task): a task or
/// message gets the same one whatever the order of execution and however backward is split, so runs
/// in both dispatch modes get the same delays.
///
/// "measured": the largest spreads that the paper found for single events over 300 identical runs
/// (arXiv 2605.18750, figure 2), in multiples of the median:
///
///   compute         p95 - p5 = 0.73    p75 - p25 = 0.35
///   communication   p95 - p5 = 58.74   p75 - p25 = 50.80
///
/// A log-normal with spread sigma has p95 - p5 = 2 sinh(1.645 sigma) and p75 - p25 = 2 sinh(0.674
/// sigma). Compute: sigma = 0.237 misses one figure by +9 % and the other by -9 %. Communication:
/// no log-normal has both; 2.478 has the first, but its second would be 5.1. A distribution with
/// two peaks has both: between a quarter and a half of the messages take some 50 times as long as
/// the others. The figures leave that share open; we take the middle, 3/8. With a Pareto tail on
/// the extra time, s (1 - u)^(-1/a), the two quantiles 1/3 and 13/15 then give s = 48.97, a
/// = 11.09.
///
/// The paper probably measured communication at the receiver, which includes some waiting for the
/// sender. Using the figures as times on the link is therefore the worst case.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <rrfp/core/placement.hpp>
#include <rrfp/core/task.hpp>

namespace rrfp::simulate {

enum class salt : std::uint64_t;

inline constexpr double measured_compute_sigma = 0.237;
inline constexpr double measured_link_sigma = 2.478;
/// Above this loss rate, a run measures nothing but resends.
inline constexpr double loss_probability_max = 0.9;

/// none: no disturbance.
/// lognormal: multiplies each duration by a log-normal factor with mean 1.
/// paper: with `probability`, delays a task by alpha * max(floor_ms, e) * (0.5 + U(0,1)), where e
/// is the moving average of the durations c of the stage's F and fused BW, e = 0.9 e + 0.1 c (arXiv
/// 2605.18750, section on robustness); J1 = (.1, 5 ms, .5), J2 = (.2, 10 ms, 1.0), J3 = (.3, 15
/// ms, 1.5). Delays F and backwards, fused or split, but no W: otherwise splitting W off would add
/// delays. lognormal_and_paper: the paper's delays on a machine that varies by itself.
enum class compute_jitter : std::uint8_t { none, lognormal, paper, lognormal_and_paper };

std::string_view name(compute_jitter kind);
bool has_paper(compute_jitter kind);

/// Distribution of the extra time that a message takes on its link: constant, exponential,
/// lognormal (same mean, spread sigma) or pareto (same mean, tail index alpha > 1).
enum class link_jitter : std::uint8_t { none, constant, exponential, lognormal, pareto };

std::string_view name(link_jitter kind);

/// The factor on a message's own time (bytes over bandwidth, plus latency).
/// none: 1. lognormal: log-normal with median 1 and `measured_link_sigma`. stalls: 1, but with
/// probability `stall_probability` the message takes extra time: stall_factor * (1 - U)^(-1 /
/// stall_alpha) times its own time (or times `stall_unit_ms`).
enum class link_spread : std::uint8_t { none, lognormal, stalls };

std::string_view name(link_spread s);

/// How the delays of the tensor-parallel ranks of a stage differ. together: the slowest rank ends a
/// task for all, because their collectives make them meet inside it, and their messages have one
/// delay. apart: each rank ends its task by itself, and each of their messages has a delay of its
/// own, so inputs arrive on the ranks at different times.
enum class rank_delays : std::uint8_t { together, apart };

std::string_view name(rank_delays d);

struct conditions {
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

  link_spread spread = link_spread::none;
  double stall_probability = 0.375;
  double stall_factor = 48.97;
  double stall_alpha = 11.09;
  /// Unit of the extra time of a stall, in milliseconds, for every message; 0: the message's own
  /// time.
  double stall_unit_ms = 0;

  /// Slows down every task of this stage by this factor; 1: no straggler.
  std::uint32_t straggler_stage = 0;
  double straggler_factor = 1;
  /// Pauses one rank of this stage once per step, before the F of a random microbatch; 0: never.
  std::uint32_t pause_stage = 0;
  double pause_ms = 0;
  /// Slows down messages between this stage and the next, in both directions, by this factor; 1: no
  /// slow link.
  std::uint32_t slow_link_stage = 0;
  double slow_link_factor = 1;

  /// Probability that an attempt to send a message is lost; the sender repeats it after
  /// `resend_ms`, so the message arrives late.
  double loss_probability = 0;
  double resend_ms = 20;

  rank_delays ranks = rank_delays::together;
};

/// Ranks of a stage, of which the slowest counts.
struct rank_range {
  std::uint32_t first = 0;
  std::uint32_t count = 1;
};

/// "none"; "J0" to "J3"; "measured": log-normal compute and links with stalls, as above;
/// "measured-lognormal": both log-normal. Nothing for any other text.
std::optional<conditions> conditions_of(std::string_view name);

/// Whether any task, or any message, may take a time other than its own.
bool disturbs_tasks(const conditions& c);
bool disturbs_messages(const conditions& c);

/// Task and message times under given conditions. Thread-safe. The conditions must be in the
/// ranges of [jitter]. Times are in milliseconds. A stage has `ranks` tensor-parallel ranks; a
/// message goes to `rank`. With rank_delays::together, pass all ranks for a task and rank 0 for a
/// message.
class disturbed_times {
 public:
  disturbed_times(const conditions& c, const pipeline_shape& shape, std::uint32_t ranks = 1)
      : conditions_(c), shape_(shape), ranks_(ranks) {}

  /// Extra time of a task of expected duration `expected_ms`. Log-normal jitter may be negative,
  /// but never below -expected_ms. `average_ms` is the e of the paper's formula. A BW gets the
  /// draws of its B.
  double compute_extra_ms(step_id step, stage_id stage, rank_id rank, const task& t,
                          double expected_ms, double average_ms) const;

  /// Extra time, >= 0, of the message that carries the input of `t` (F: activation, B or BW:
  /// gradient) to a rank of `to`. Messages on one link are independent: a later one may overtake an
  /// earlier one.
  double link_extra_ms(step_id step, virtual_stage_id to, rank_id rank, const task& t) const;

  /// Duration of a task with undisturbed duration `own_ms`. `average_ms`: the e of the paper's
  /// formula.
  double compute_ms(step_id step, stage_id stage, rank_range ranks, const task& t, double own_ms,
                    double average_ms) const;
  /// The same for a BW with two parts.
  double fused_ms(step_id step, stage_id stage, rank_range ranks, const task& t, double backward_ms,
                  double weight_ms, double average_ms) const;
  /// Time of the message that carries the input of `t` to virtual stage `to`, including lost
  /// attempts.
  double link_ms(step_id step, virtual_stage_id to, rank_id rank, const task& t,
                 double own_ms) const;
  /// Time of the small message that precedes it and announces its shape; spread independently.
  double shape_ms(step_id step, virtual_stage_id to, rank_id rank, const task& t,
                  double own_ms) const;

 private:
  /// Number of attempts that are lost before one arrives.
  std::uint32_t losses_of(step_id step, virtual_stage_id to, rank_id rank, const task& t) const;
  double place_ms(step_id step, stage_id stage, rank_range ranks, const task& t, double ms) const;
  bool is_slow_link(virtual_stage_id to, const task& t) const;
  double spread_ms(salt purpose, step_id step, virtual_stage_id to, rank_id rank, const task& t,
                   double own_ms) const;

  conditions conditions_;
  pipeline_shape shape_;
  std::uint32_t ranks_;
};

}  // namespace rrfp::simulate

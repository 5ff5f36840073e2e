/// The delays that a run meets, each a pure function of its key.
#pragma once

#include <rrfp/schedule/task.hpp>
#include <rrfp/weather/options.hpp>

namespace rrfp::weather {

/// Thread-safe: holds nothing but its options, which must satisfy validate(). All times in
/// milliseconds.
class forecast {
 public:
  explicit forecast(const jitter_options& options) : options_(options) {}

  const jitter_options& options() const { return options_; }

  /// What a task of expected duration `expected_ms` takes longer (log-normal: also shorter, never
  /// by more than expected_ms). `average_ms` is the e of the paper's formula. A BW has the draws of
  /// its B; who knows its two parts asks fused_extra_ms().
  double compute_extra_ms(step_id step, stage_id stage, rank_id rank, const task& what,
                          double expected_ms, double average_ms) const;

  /// The same for a BW whose parts take `backward_ms` and `weight_ms`, so that splitting W off
  /// changes no amount of work. Log-normal: each part has its own factor. Paper: one delay, that of
  /// its B; a W has none.
  double fused_extra_ms(step_id step, stage_id stage, rank_id rank, const task& what,
                        double backward_ms, double weight_ms, double average_ms) const;

  /// Extra time, >= 0, of the message that brings the input of `what` (F: activation, B or BW:
  /// gradient) to `to`. Messages of one link are independent: a later one may overtake.
  double link_extra_ms(step_id step, virtual_stage_id to, const task& what) const;

 private:
  jitter_options options_;
};

}  // namespace rrfp::weather

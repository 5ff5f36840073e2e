/// The jitter of a run: each delay is a pure function of its key.
#pragma once

#include <rrfp/core/task.hpp>
#include <rrfp/simulate/weather_options.hpp>

namespace rrfp::weather {

/// Thread-safe: holds only its options, which must satisfy validate(). All times are in
/// milliseconds.
class jitter_model {
 public:
  explicit jitter_model(const jitter_options& options) : options_(options) {}

  const jitter_options& options() const { return options_; }

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

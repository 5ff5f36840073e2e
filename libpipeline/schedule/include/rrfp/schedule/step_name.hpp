/// How a step is called wherever a person or a program reads of it.
///
/// One rule: steps count from 1, so that "step 3" is the step with which three are complete, in
/// messages, hooks, traces, files of durations, metrics and checkpoints alike. Evaluations count
/// from 1 on their own. A step_id is a key, not a number: steps and evaluations of a run have
/// different ones, and random numbers are drawn from it.
#pragma once

#include <cstdint>
#include <string>

#include <rrfp/schedule/ids.hpp>

namespace rrfp {

/// The key of a run's first evaluation.
inline constexpr std::uint64_t first_evaluation = std::uint64_t{1} << 52;

constexpr bool is_evaluation(step_id s) { return s.value() >= first_evaluation; }

/// From 1 on.
constexpr std::uint64_t number_of(step_id s) {
  return s.value() - (is_evaluation(s) ? first_evaluation : 0) + 1;
}

/// "step 3" or "evaluation 1".
inline std::string to_string(step_id s) {
  return (is_evaluation(s) ? "evaluation " : "step ") + std::to_string(number_of(s));
}

}  // namespace rrfp

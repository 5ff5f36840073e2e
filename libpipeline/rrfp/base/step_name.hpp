/// The numbers of steps in all input and output.
///
/// Steps count from 1: "step 3" is the step that completes three steps, in messages, hooks, traces,
/// files of durations, metrics and checkpoints alike. Evaluations have their own numbers, also from
/// 1. A step_id is a key, not such a number: steps and evaluations of a run have different keys,
/// and random numbers depend on the key.
#pragma once

#include <cstdint>
#include <string>

#include <rrfp/base/ids.hpp>

namespace rrfp {

/// The key of a run's first evaluation.
inline constexpr std::uint64_t first_evaluation = std::uint64_t{1} << 52;

constexpr bool is_evaluation(step_id s) { return s.value() >= first_evaluation; }

/// The number of the step or evaluation, from 1.
constexpr std::uint64_t number_of(step_id s) {
  return s.value() - (is_evaluation(s) ? first_evaluation : 0) + 1;
}

/// "step 3" or "evaluation 1".
inline std::string to_string(step_id s) {
  return (is_evaluation(s) ? "evaluation " : "step ") + std::to_string(number_of(s));
}

}  // namespace rrfp

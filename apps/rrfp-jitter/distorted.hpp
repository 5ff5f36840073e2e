/// Bad hints derived from good ones, to measure the value of a hint. They rank the same tasks but
/// are only hints: executed in order, they may deadlock.
#pragma once

#include <cstdint>
#include <memory>

#include <rrfp/core/policy.hpp>

namespace rrfp::experiment {

/// Reverses the ranking of `base`. For a policy that works in rounds: the last lane before all
/// others, without rounds.
std::shared_ptr<const policy_set> make_reversed(std::shared_ptr<const policy_set> base);

/// Ranks the tasks of `base` in a random order, a different one for each stage; equal seeds give
/// equal orders.
std::shared_ptr<const policy_set> make_shuffled(std::shared_ptr<const policy_set> base,
                                                std::uint64_t seed);

}  // namespace rrfp::experiment

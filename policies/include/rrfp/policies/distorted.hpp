/// Bad hints, made of good ones, to see what a hint is worth. They rank the same tasks, so they are
/// hints only: obeyed in order they need not end.
#pragma once

#include <cstdint>
#include <memory>

#include <rrfp/policies/registry.hpp>

namespace rrfp::policies {

/// What `base` ranks last comes first. Of a policy that works in rounds: the last lane before all
/// others, without rounds.
std::shared_ptr<const policy_set> make_reversed(std::shared_ptr<const policy_set> base);

/// Any order of the tasks that `base` knows, another for each stage; the same seed gives the same.
std::shared_ptr<const policy_set> make_shuffled(std::shared_ptr<const policy_set> base,
                                                std::uint64_t seed);

}  // namespace rrfp::policies

/// A training with symbols for tensors: each value is a hash of everything that it is computed
/// from, in the order in which it is computed. If a microbatch is lost, contributes twice or is
/// folded out of turn, then all later weights differ from those of the reference.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <rrfp/core/placement.hpp>

#include "scenario.hpp"

namespace rrfp::cluster {

using symbol = std::uint64_t;

namespace symbols {

inline symbol initial_weight(std::uint32_t run, virtual_stage_id vs, rank_id rank) {
  return mix(mix(run, vs.value()), rank.value() + 77);
}
inline symbol data(std::uint32_t run, step_id step, replica_id replica, microbatch_id mb,
                   rank_id rank) {
  return mix(mix(mix(run, step.value()), replica.value()), mix(mb.value(), rank.value()));
}
inline symbol forward(symbol weight, symbol input) { return mix(weight, input); }
inline symbol first_gradient(symbol output) { return mix(output, 1); }
inline symbol backward(symbol weight, symbol input, symbol gradient) {
  return mix(mix(weight, input), gradient);
}
inline symbol weight_gradient(symbol input, symbol gradient) { return mix(input, gradient + 2); }
/// Adds that of one more microbatch.
inline symbol fold(symbol sum, symbol gradient) { return mix(sum, gradient); }
inline symbol updated(symbol weight, symbol gradient, symbol scale) {
  return mix(mix(weight, gradient), scale);
}

}  // namespace symbols

/// The weights of one rank, by chunk.
using rank_state = std::vector<symbol>;

std::string bytes_of(const rank_state& state);
/// Nothing if the bytes are not those of a state.
std::optional<rank_state> state_of(const std::string& bytes);

/// What a run without faults computes.
struct reference_run {
  /// By complete steps, and stage * ranks + rank.
  std::vector<std::vector<rank_state>> states;
  std::vector<symbol> losses;  ///< all so far, by complete steps
  symbol evaluations = 0;
  symbol weights = 0;
};

reference_run compute_reference(const scenario& c, std::uint32_t run);

/// Chains of what ranks and stages report; the same in the reference and in the job's driver.
symbol hash_of(const std::vector<symbol>& values);

}  // namespace rrfp::cluster

/// The hint of a cell: its policy, or what its run derives from the policy.
#pragma once

#include "cell.hpp"

namespace rrfp::experiment {

// Bad hints derived from good ones, to measure the value of a hint. They rank the same tasks but
// are only hints: executed in order, they may deadlock.

/// Reverses the ranking of `base`. For a policy that works in rounds: the last lane before all
/// others, without rounds.
std::shared_ptr<const policy_set> make_reversed(std::shared_ptr<const policy_set> base);

/// Ranks the tasks of `base` in a random order, a different one for each stage; equal seeds give
/// equal orders.
std::shared_ptr<const policy_set> make_shuffled(std::shared_ptr<const policy_set> base,
                                                std::uint64_t seed);

/// The policies of rrfp, each as the hint quality of the cell derives it; for plan and session of
/// c.job. Refers to the cell. Errors of make(): those of the policies; a schedule that stalls.
class cell_policies final : public policy_registry {
 public:
  explicit cell_policies(const cell& c) : cell_(c) {}

  const std::vector<policy_info>& known() const override;
  result<std::shared_ptr<const policy_set>> make(std::string_view name,
                                                 const pipeline_shape& shape) const override;

 private:
  const cell& cell_;
};

}  // namespace rrfp::experiment

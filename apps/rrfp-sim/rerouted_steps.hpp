/// The time of a job's step without some of its nodes, as recovery.without_replacement = "reroute"
/// goes on: the ranks of the lost nodes are on those of other replicas, and the microbatches are
/// divided by share_planner.
///
/// Replicas that share devices are simulated as one pipeline that runs the microbatches of all of
/// them, with their slots. A device that they share runs them one after the other. Where each has a
/// device of its own, the stage takes microbatches as often as the busiest of them allows, and each
/// still takes its whole time. A step takes the time of the slowest pipeline; nothing is added for
/// the sum of the gradients.
///
/// Sets of nodes that differ only in the replicas that they are of are simulated once. Of the
/// others, `sets_max` are; then, the mean of the known sets of as many nodes stands for a set.
#pragma once

#include <map>
#include <span>
#include <vector>

#include <rrfp/job/node_places.hpp>

namespace rrfp::apps {

class rerouted_steps {
 public:
  static constexpr std::size_t sets_max = 2000;

  /// `steps`: over how many the mean is taken.
  rerouted_steps(const job::job& j, job::node_places places, std::uint64_t steps)
      : job_(j), places_(std::move(places)), steps_(steps) {}

  /// Seconds, mean. If the job's policy cannot run the shares, each replica keeps its own
  /// microbatches; if it can run no other number, the step is longer by the work of the busiest
  /// device. Errors, without absent nodes only: those of job::make_dispatch_plan(),
  /// expected_costs() and simulate::run(). Each rank must have a node that is left.
  result<double> seconds_without(std::span<const node_id> absent);

 private:
  /// Replicas that share devices, or one that shares none.
  struct part {
    std::vector<std::uint32_t> replicas;
    std::uint32_t microbatches = 0;
    std::vector<std::uint32_t> busiest;  ///< by stage: the most microbatches of one device

    auto operator<=>(const part&) const = default;
  };

  std::vector<node_id> representative_of(std::span<const node_id> absent) const;
  result<double> simulated_without(std::span<const node_id> absent);
  std::vector<part> parts_of(const std::vector<std::uint32_t>& shares,
                             const std::vector<std::uint32_t>& devices) const;
  result<double> seconds_of(const std::vector<part>& parts);
  result<std::vector<double>> simulated(const part& p) const;

  const job::job& job_;
  const job::node_places places_;
  const std::uint64_t steps_;
  std::map<part, std::vector<double>> parts_;  ///< seconds of each step
  std::map<std::vector<node_id>, double> sets_;
  struct sum {
    double seconds = 0;
    double sets = 0;
  };
  std::map<std::size_t, sum> by_size_;
};

}  // namespace rrfp::apps

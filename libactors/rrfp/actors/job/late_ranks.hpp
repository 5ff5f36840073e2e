/// The stragglers of a run, found on node 0 from what the stages report of each step.
#pragma once

#include <map>
#include <vector>

#include <rrfp/actors/control/messages.hpp>
#include <rrfp/core/job_events.hpp>
#include <rrfp/core/stragglers.hpp>
#include <rrfp/metrics/run_counters.hpp>

namespace rrfp::actors {

class late_ranks {
 public:
  /// `counters`: of each rank of the job, in the order replica, stage, rank.
  late_ranks(std::uint32_t replicas, std::uint32_t stages, std::uint32_t ranks,
             std::deque<metrics::late_counter>& counters)
      : watch_(replicas, stages, ranks), counters_(counters) {}

  /// A training step, by stage. Returns the stragglers to report: not those that were reported
  /// lately.
  std::vector<straggler> add(const std::map<stage_key, stage_step_ended>& outcomes);

 private:
  /// A straggler is reported again if it was none for so many steps.
  static constexpr std::uint64_t steps_before_again = 200;

  straggler_watch watch_;
  std::deque<metrics::late_counter>& counters_;
  std::uint64_t steps_ = 0;
  std::map<stage_key, std::uint64_t> seen_at_;  ///< the last step in which it was one
};

}  // namespace rrfp::actors

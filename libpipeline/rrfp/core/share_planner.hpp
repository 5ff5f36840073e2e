/// Decides how many microbatches each replica runs, so that a slow stage of one replica, or two
/// replicas on one device, do not make the others wait.
///
/// A replica takes about the time that its first microbatch needs on all stages, and the time of
/// its slowest stage for each further one. A device that hosts a stage of several replicas takes
/// the time of all their microbatches, plus that of one microbatch on the other stages. The
/// microbatches are given out one by one, each to the replica that would then end first.
///
/// Speeds are measured: the time of a stage divided by the work that it did, so that a stage with
/// much work does not look slow. A stage that shares its device counts with the time of the same
/// stage of another replica. The shares change only if, in each of the last `patience` steps, other
/// shares would have shortened the step by gain_min, or the replicas' own microbatches would have
/// taken less than half of gain_min longer than the best shares.
///
/// Pure: equal steps give equal shares. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include <rrfp/core/placement.hpp>

namespace rrfp {

struct share_planner_options {
  std::uint32_t replicas = 1;
  std::uint32_t stages = 1;
  /// The device of each stage, at replica * stages + stage; equal numbers share one. Empty: none
  /// do.
  std::vector<std::uint32_t> devices = {};
  /// Whether shares follow the measured times; else only shared devices count.
  bool measures = false;
};

class share_planner {
 public:
  static constexpr double gain_min = 0.05;
  static constexpr std::uint32_t patience = 3;
  /// Weight of the last step in the measured times.
  static constexpr double smoothing = 0.25;

  explicit share_planner(share_planner_options options);

  /// The shares of a step with these microbatches.
  microbatch_shares plan(const microbatch_counts& counts) const;

  struct stage_time {
    double time = 0;  ///< in tasks, in any unit
    double work = 0;  ///< of them, in any unit; 0: the stage had none
  };
  /// A step that trains is over. `times`: of each stage, at replica * stages + stage.
  void observe(const microbatch_counts& counts, const std::vector<stage_time>& times);

 private:
  std::size_t index(std::uint32_t replica, std::uint32_t stage) const {
    return std::size_t{replica} * options_.stages + stage;
  }
  /// Whether all replicas are planned to be alike.
  bool is_even() const;
  void measure(const std::vector<stage_time>& times);
  // `times`: of each stage, for a microbatch.
  std::vector<std::uint32_t> divide(std::uint32_t total, const std::vector<double>& times) const;
  double step_time(const std::vector<std::uint32_t>& shares,
                   const std::vector<double>& times) const;
  /// When the replica ends, if it has this share and its devices this load.
  double end_of(std::uint32_t replica, std::uint32_t share, const std::vector<double>& load,
                const std::vector<double>& times) const;
  double own_time(std::uint32_t replica, std::uint32_t share,
                  const std::vector<double>& times) const;
  /// Of one microbatch on all stages.
  double first_time(std::uint32_t replica, const std::vector<double>& times) const;
  double slowest_stage(std::uint32_t replica, const std::vector<double>& times) const;

  const share_planner_options options_;
  std::vector<std::uint32_t> devices_;  ///< of each stage
  std::vector<bool> is_shared_;         ///< of each stage: its device hosts others, too
  std::vector<double> measured_;        ///< of each stage, for a unit of work; 0: not yet
  std::vector<double> planned_;         ///< of each stage: what the shares follow
  std::uint32_t better_ = 0;            ///< steps in a row in which other shares were better
};

}  // namespace rrfp

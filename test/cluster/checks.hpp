/// What must hold of every run, whatever happens to the nodes. A check that fails throws.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <rrfp/core/job_events.hpp>
#include <rrfp/core/recovery_point.hpp>

#include "symbols.hpp"
#include "world.hpp"

namespace rrfp::cluster {

class simulation;
class process;

class checkers {
 public:
  explicit checkers(simulation& of) : sim_(of) {}

  const rank_state& state_after(std::uint32_t run, std::uint64_t step, stage_id stage,
                                rank_id rank);
  /// The weights of every rank after every step are those of the run without faults.
  void on_applied(std::uint32_t run, std::uint64_t step, const rank_address& at,
                  const rank_state& state);
  /// `losses`: all so far, if the run has them since its first step.
  void on_committed(std::uint32_t run, std::uint64_t step, std::optional<symbol> losses);
  /// No node sees other steps than the job commits.
  void on_step_over(const process& by, std::uint32_t run, std::uint64_t step);
  /// A node takes another one for lost.
  void on_loss(const process& by, const std::string& why) const;
  /// A node has measured the clock of node 0; what it has found, and what is right.
  void on_clock_offset(const process& by, nanoseconds found, nanoseconds expected) const;

  // Copies are held twice before older ones go, and on two hosts if there are two.
  void on_held(const process& by, std::uint32_t run, const copy_key& what);
  /// `present`: the nodes that take part.
  void on_keep(const process& by, std::uint32_t run, std::uint64_t step,
               std::span<const node_id> present);
  /// It has dropped its copies because the job goes on without them.
  void on_cleared(const process& by);
  void on_kept(const process& by, std::uint32_t run, std::uint64_t step);
  /// A node leaves: the run that follows goes on after this step.
  void on_handed_over(std::uint32_t run, std::uint64_t step, const std::string& why) {
    handed_over_ = {run, step, why};
  }
  /// All nodes choose the same point, and the newest that the copies of the living allow.
  void on_point(const process& by, std::span<const std::uint32_t> processes,
                std::span<const recovery_report> reports, const recovery_point& point);

  /// Node 0 writes the results of all runs.
  void on_outputs(const std::vector<run_record>& runs);
  bool has_outputs() const { return has_outputs_; }
  /// A node knows that they are written, so it may end for good.
  void on_outputs_known();
  bool outputs_known() const { return outputs_known_; }
  std::uint64_t steps_committed() const { return steps_committed_; }
  std::uint64_t recoveries() const { return recoveries_; }
  nanoseconds first_commit() const { return first_commit_; }
  nanoseconds last_commit() const { return last_commit_; }
  /// Of the first step that was committed after the last recovery.
  nanoseconds went_on() const { return went_on_; }

 private:
  const reference_run& reference(std::uint32_t run);

  simulation& sim_;
  std::vector<reference_run> references_;
  std::map<std::pair<std::uint32_t, copy_key>, std::set<std::uint32_t>> holders_;  ///< processes
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> kept_;  ///< by run and process
  std::map<std::uint32_t, std::set<std::uint64_t>> keeps_;                 ///< steps, by run
  std::map<std::string, std::string> points_;                              ///< by the reports
  struct {
    std::uint32_t run = 0;
    std::uint64_t step = 0;
    std::string why;  ///< empty: no node has left since the last point
  } handed_over_;
  bool has_outputs_ = false;
  std::set<std::uint32_t> taking_part_;  ///< processes, since the last point
  bool outputs_known_ = false;
  std::map<std::uint32_t, std::uint64_t> newest_step_;  ///< that was committed, by run
  std::uint64_t steps_committed_ = 0;
  std::uint64_t recoveries_ = 0;
  nanoseconds first_commit_ = 0;
  nanoseconds last_commit_ = 0;
  nanoseconds went_on_ = 0;
};

}  // namespace rrfp::cluster

/// Where a job resumes after the loss of a node.
///
/// When all nodes have joined again, each sends node 0 its report: the copies that it holds, and
/// what it knows of the run. Node 0 chooses the point: the newest step of which every rank's copy
/// and the record are each held by some node. It tells each node the part that it needs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <rrfp/base/ids.hpp>
#include <rrfp/core/copy_set.hpp>

namespace rrfp {

/// What the losses of a job have cost so far.
struct recovery_totals {
  std::uint32_t restarts = 0;  ///< losses
  std::uint64_t repeated_steps = 0;
  double held_s = 0;  ///< from each loss until all nodes had joined again

  bool operator==(const recovery_totals&) const = default;
};
auto fields(auto f, recovery_totals& x) { return f(x.restarts, x.repeated_steps, x.held_s); }

/// A run of the job that is over, as bytes that only the job reads.
struct run_record {
  std::string summary;
  std::string details{};  ///< see keeps_details()

  bool operator==(const run_record&) const = default;
};
auto fields(auto f, run_record& x) { return f(x.summary, x.details); }

/// What a node knows of the job, or all nodes together.
struct job_progress {
  recovery_totals totals;  ///< what this loss has cost is not yet known
  /// The message that reported the loss. Empty: this node has just started; if it is empty on all
  /// nodes, the job begins.
  std::string lost;
  double held_s = 0;        ///< time since the loss
  std::uint64_t steps = 0;  ///< complete, of the current run
  /// Steps that were complete when the job began the current run. Nothing: no node knows it,
  /// because it has just started, or has finished the run.
  std::optional<std::uint64_t> began_after{};
  /// The runs of the job that are over; the next one is the current run.
  std::vector<run_record> finished;
  job_record record;

  bool operator==(const job_progress&) const = default;
};
auto fields(auto f, job_progress& x) {
  return f(x.totals, x.lost, x.held_s, x.steps, x.began_after, x.finished, x.record);
}

/// What a node tells node 0 when all have joined.
struct recovery_report : job_progress {
  std::vector<held_copy> held;

  /// The current run is over, on this node or, while this one was lost, on others. The caller drops
  /// its copies.
  void finish_run(run_record summary);

  bool operator==(const recovery_report&) const = default;
};
auto fields(auto f, recovery_report& x) { return f(static_cast<job_progress&>(x), x.held); }

/// Where the job goes on.
struct recovery_point : job_progress {
  struct source {
    node_id node;
    std::uint64_t bytes = 0;
    std::uint64_t xxh64 = 0;

    bool operator==(const source&) const = default;
  };
  /// The copies that the run goes on from, with the first node that holds them; for a node, those
  /// of its ranks.
  std::map<copy_key, source> copies;

  /// Otherwise the run begins from a checkpoint or the first step.
  bool has_copies() const { return !record.bytes.empty(); }

  bool operator==(const recovery_point&) const = default;
};
auto fields(auto f, recovery_point::source& x) { return f(x.node, x.bytes, x.xxh64); }
auto fields(auto f, recovery_point& x) { return f(static_cast<job_progress&>(x), x.copies); }

/// `reports`: of all nodes, by number. `ranks`: of each run of the job, of one replica.
recovery_point choose_recovery_point(std::span<const recovery_report> reports,
                                     std::span<const std::uint32_t> ranks);

/// What each node needs of the point, by node: the copies of its ranks alone, and details if it
/// keeps them. The leader needs all: it tells the nodes whom they connect to. `nodes_of`: those of
/// a rank, of all replicas.
std::vector<recovery_point> parts_of(
    const recovery_point& point, std::uint32_t nodes, node_id leader,
    const std::function<std::vector<node_id>(stage_id, rank_id)>& nodes_of);

}  // namespace rrfp

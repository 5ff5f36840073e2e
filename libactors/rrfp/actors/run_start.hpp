/// How the nodes of a job agree on a run before it begins. In one round, each node tells node 0
/// what it has: a fingerprint of its data, and what it knows and holds of the job after a loss.
/// Node 0 answers with all that they need: the run that comes next, where it goes on, the
/// checkpoint that it resumes from, and a token that sets its messages apart from those of earlier
/// runs.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <rrfp/actors/framework.hpp>
#include <rrfp/actors/job_start.hpp>
#include <rrfp/actors/session.hpp>
#include <rrfp/core/recovery_point.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/membership/membership.hpp>

namespace rrfp::actors {

/// A run of a job with what it reads from this machine, opened and checked.
struct opened_run {
  job::job options;
  /// Null: an emulated device, or a model that the job file does not describe.
  std::shared_ptr<const job_model> model;
  session_setup setup;  ///< see make_session_setup()
};

/// What all nodes have agreed on. The runs before `number` are over, and are those of
/// from.finished. If it is the number of runs, there is no further one.
struct run_start {
  std::size_t number = 0;
  job_start start;
  recovery_point from;
  /// That of the run, with the checkpoint to resume from and, on node 0, the ring. If this node
  /// does not see the checkpoint, `ready` says so, and session::open() tells the others.
  session_setup setup;
  /// On node 0, notes about the checkpoints for the user, a line each; the one resumed from is not
  /// among them.
  std::vector<std::string> notes;
};

/// Agrees where the next run begins; called on all nodes, with all runs. `mine`: what this node
/// knows of the job. `members` is null if there is one node. The error is the same on all nodes:
/// other data than on node 0, those of hold_checkpoints(), or a lost node.
result<run_start> agree_on_start(membership* members, std::span<const opened_run> runs,
                                 const recovery_report& mine = {});

}  // namespace rrfp::actors

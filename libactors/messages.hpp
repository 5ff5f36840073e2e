/// What the actors tell each other. A message is a struct; its type says what it means.
///
///   job -> node -> job          host, hosted
///   job -> stage                begin_step, apply_update, report_weights, report_progress, stop
///   stage -> rank               the same, and run_launch, end_step
///   transport -> rank           message (transport.hpp)
///   rank -> stage               arrived, launch_done, rank_step_ended, update_applied
///   stage -> job                stage_step_ended, update_applied, stage_weights, stage_progress
///   anybody -> job              failed, interrupted
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <rrfp/actors/transport.hpp>
#include <rrfp/compute/parameter_report.hpp>
#include <rrfp/compute/stage_compute.hpp>
#include <rrfp/schedule/event.hpp>
#include <rrfp/schedule/memory.hpp>

#include "caf_compat.hpp"

namespace rrfp::actors {

struct stage_handle {
  stage_id stage;
  caf::actor supervisor;
};

/// Spawn these stages.
struct host {
  std::vector<stage_id> stages;
  caf::actor job;
};
struct hosted {
  std::vector<stage_handle> stages;
};

struct begin_step {
  step_id step;
};
/// The input of a task is on a rank.
struct arrived {
  step_id step;
  task_kind kind = task_kind::forward;
  microbatch_id mb;
  chunk_id chunk;
  rank_id rank;
};
/// A supervisor to itself: everything in the mailbox is seen, choose.
struct decide_now {};
struct run_launch {
  step_id step;
  launch what;
};
struct launch_done {
  step_id step;
  launch what;
  rank_id rank;
  std::int64_t begin = 0;  ///< ns since the run began
  std::int64_t end = 0;
  std::int64_t delay = 0;  ///< injected part
  std::int64_t held_bytes = 0;
};
/// All tasks of the step are done: exchange tied gradients and report.
struct end_step {
  step_id step;
};
struct rank_step_ended {
  step_id step;
  rank_id rank;
  std::vector<compute::microbatch_loss> losses;
  std::vector<compute::parameter_norm> norms;
  std::int64_t peak_bytes = 0;
};
struct stage_step_ended {
  step_id step;
  stage_id stage;
  std::vector<compute::microbatch_loss> losses;
  std::vector<compute::parameter_norm> norms;
  memory_use memory;
  std::int64_t peak_bytes = 0;  ///< activation memory, measured, of the rank that held most
  std::int64_t busy = 0;        ///< ns in tasks, of the slowest rank
  std::int64_t first_begin = 0;
  std::int64_t last_end = 0;
};
struct apply_update {
  step_id step;
  double scale = 1;
  double lr = 0;
};
struct update_applied {
  step_id step;
  stage_id stage;
  rank_id rank;
};
struct report_weights {};
struct stage_weights {
  stage_id stage;
  std::vector<compute::parameter_hash> hashes;
  std::vector<std::string> transcript;
};
/// Answered even when nothing moves: who waits for what.
struct report_progress {};
struct stage_progress {
  stage_id stage;
  std::string text;
};
/// Drop all work; what runs is the last.
struct stop {};
struct failed {
  std::string message;
};
struct interrupted {};
/// The job actor's own clock.
struct tick {};

}  // namespace rrfp::actors

RRFP_LOCAL_MESSAGE(rrfp::actors::host)
RRFP_LOCAL_MESSAGE(rrfp::actors::hosted)
RRFP_LOCAL_MESSAGE(rrfp::actors::begin_step)
RRFP_LOCAL_MESSAGE(rrfp::actors::arrived)
RRFP_LOCAL_MESSAGE(rrfp::actors::decide_now)
RRFP_LOCAL_MESSAGE(rrfp::actors::run_launch)
RRFP_LOCAL_MESSAGE(rrfp::actors::launch_done)
RRFP_LOCAL_MESSAGE(rrfp::actors::end_step)
RRFP_LOCAL_MESSAGE(rrfp::actors::rank_step_ended)
RRFP_LOCAL_MESSAGE(rrfp::actors::stage_step_ended)
RRFP_LOCAL_MESSAGE(rrfp::actors::apply_update)
RRFP_LOCAL_MESSAGE(rrfp::actors::update_applied)
RRFP_LOCAL_MESSAGE(rrfp::actors::report_weights)
RRFP_LOCAL_MESSAGE(rrfp::actors::stage_weights)
RRFP_LOCAL_MESSAGE(rrfp::actors::report_progress)
RRFP_LOCAL_MESSAGE(rrfp::actors::stage_progress)
RRFP_LOCAL_MESSAGE(rrfp::actors::stop)
RRFP_LOCAL_MESSAGE(rrfp::actors::failed)
RRFP_LOCAL_MESSAGE(rrfp::actors::interrupted)
RRFP_LOCAL_MESSAGE(rrfp::actors::tick)
RRFP_LOCAL_MESSAGE(rrfp::actors::message)

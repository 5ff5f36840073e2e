/// The messages between actors. Each message is a struct type.
///
///   job -> node                 step_over, state_ready, keep_copies, write_report, job_ended
///   node -> node                copy_offered, fetch_copy
///   node -> stage -> node       report_state, state_reported
///   job -> stage                begin_step, apply_update, copy_state, report_weights,
///                               report_progress
///   stage -> rank               the same except report_progress, and run_launch, end_step
///   job -> rank                 restore_state, take_snapshot
///   transport -> rank           message (transport.hpp)
///   rank -> stage               arrived, launch_done, rank_step_ended, update_applied,
///                               stage_weights
///   rank -> job                 state_restored, snapshot_taken, snapshot_written
///   stage -> job                stage_step_ended, update_applied, stage_weights, stage_progress
///   node -> job                 copies_arrive
///   any actor -> job            copy_taken, copy_held, failed, suspected, interrupted,
///                               drain_asked, batch_given, report_requested
///   process -> job or node      start, node_lost, suspected, node_waits, interrupted, drain_asked,
///                               demanded, batch_given, report_requested
///   node -> stage or rank       stage_ranks, stop
///   job, stage, node -> itself  save_ended, timer_fired; decide_now; report_due
///
/// Messages can travel between nodes unless they are marked local. Times are nanoseconds since the
/// run began, on the clock of node 0.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/actors/recovery.hpp>
#include <rrfp/actors/session.hpp>
#include <rrfp/core/job_events.hpp>
#include <rrfp/transport/transport.hpp>

#include "caf_compat.hpp"
#include "directory.hpp"
#include "fields.hpp"
#include "stage_state.hpp"

namespace rrfp::actors {

// What the core of the job receives, or asks of all ranks, travels as it is.
using job_action::copy_state;
using job_action::report_weights;
using job_action::restore_state;
using job_action::state_ready;
using job_action::take_snapshot;
using job_event::batch_given;
using job_event::copy_held;
using job_event::copy_taken;
using job_event::drain_asked;
using job_event::failed;
using job_event::interrupted;
using job_event::report_requested;
using job_event::state_restored;
using job_event::suspected;
using job_event::update_applied;
// The same, local:
using job_event::demanded;
using job_event::node_waits;
using job_event::save_ended;
using job_event::start;
using job_event::timer_fired;

/// Local. The ranks of a stage, in rank order.
struct stage_ranks {
  std::vector<actor_ref> ranks;
};

struct begin_step {
  step_id step;
  compute::step_purpose purpose = compute::step_purpose::training;
  microbatch_shares microbatches = {};
};
/// The input of a task has arrived on a rank.
struct arrived {
  step_id step;
  input_arrived input;
};
/// Local. A supervisor to itself: all earlier messages are handled; choose the next task.
struct decide_now {};
struct run_launch {
  step_id step;
  launch launched;
};
struct launch_done {
  step_id step;
  launch launched;
  rank_id rank;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t delay = 0;  ///< injected part
  std::int64_t late = 0;   ///< the last part, by which a timer was late to end the task
  /// When the gate let the rank go on; 0: at once.
  std::int64_t released = 0;
  std::int64_t held_bytes = 0;
  compute::memory_counts device_memory = {};  ///< zeroes if the device has none
};
/// All tasks of the step are done: sum and exchange gradients, if it trains, and report.
struct end_step {
  step_id step;
};
struct rank_step_ended {
  step_id step;
  rank_id rank;
  std::vector<compute::microbatch_loss> losses;
  std::vector<compute::parameter_norm> norms;
  std::int64_t peak_bytes = 0;
  std::int64_t in_collectives = 0;  ///< of its tasks, mostly waiting for the other ranks
};
struct stage_step_ended {
  step_id step;
  replica_id replica;
  stage_id stage;
  std::vector<compute::microbatch_loss> losses;
  std::vector<compute::parameter_norm> norms;
  memory_use memory;
  std::int64_t peak_bytes = 0;  ///< activation memory, measured, of the rank that held most
  compute::memory_counts device_memory = {};  ///< the most of a rank's device
  // Means over the ranks:
  std::int64_t busy = 0;     ///< in tasks
  std::int64_t blocked = 0;  ///< after tasks, until the gate let the rank go on
  std::int64_t behind = 0;   ///< after tasks, until all ranks had ended them
  /// Free, while the stage waited for nothing; the maximum over the ranks.
  std::int64_t launch_gap = 0;
  // Of the first rank:
  std::int64_t in_backward = 0;  ///< in B and BW
  std::int64_t in_weight = 0;    ///< in W
  /// Waits of the stage for inputs that are on some of its ranks alone.
  std::int64_t for_ranks = 0;
  /// By rank: in tasks, and from their launch until they began, but not in collectives.
  std::vector<std::int64_t> own;
  std::int64_t first_begin = 0;
  std::int64_t last_end = 0;
};
struct apply_update {
  step_id step;
  double scale = 1;
  double lr = 0;
};
/// The step is over on all nodes.
struct step_over {
  step_summary summary;
};
/// The copy is made; the pipeline may continue.
struct snapshot_taken {
  std::uint64_t step = 0;
  std::int64_t copy_time = 0;
};
/// The rank's file is on disk, or `failure` says why not.
struct snapshot_written {
  std::uint64_t step = 0;
  std::string file;
  std::uint64_t bytes = 0;
  std::uint64_t xxh64 = 0;
  std::string failure;
};
/// To the buddy: fetch this copy and hold it.
struct copy_offered {
  copy_key what;
  recovery_point::source from;
  std::uint64_t complete = 0;
};
/// Answered with a payload::copy_piece; without bytes: the copy is not here.
struct fetch_copy {
  copy_key what;
  node_id to;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};
/// Pieces of copies arrive on a node, which takes its time: the job does not hang.
struct copies_arrive {};
/// The copies of all ranks after this step are held, or none is yet: drop older ones.
struct keep_copies {
  job_record record;
};
struct stage_weights {
  rank_address from;
  std::vector<compute::parameter_hash> hashes;
  std::vector<std::string> transcript;
};
/// Asks a stage what it waits for. Answered even during a hang.
struct report_progress {};
struct stage_progress {
  std::string text;
  stage_state state;
};
/// Asks a node to write its report; `causes` were derived by the job from the stages' answers.
struct write_report {
  std::string why;
  std::vector<std::string> causes;
};
/// Local. A node to its supervisors, which answer even during a hang.
struct report_state {
  caf::actor to;
};
/// Local.
struct state_reported {
  replica_id replica;
  stage_id stage;
  std::string text;
};
/// Local. A node to itself: a time limit of report `number` has expired.
struct report_due {
  std::uint64_t number = 0;
  bool job_was_asked = false;  ///< the limit is the job's; else that of the node's stages
};
/// Local. Drop all queued work; the running work is the last.
struct stop {};
/// Local.
struct node_lost {
  std::string message;
};
/// The run is over: stop all actors of the node.
struct job_ended : job_action::end {
  /// The summary as bytes for other nodes to keep, if the run is done and makes copies.
  run_record summary = {};
};

auto fields(auto f, begin_step& x) { return f(x.step, x.purpose, x.microbatches); }
auto fields(auto f, arrived& x) { return f(x.step, x.input); }
auto fields(auto f, run_launch& x) { return f(x.step, x.launched); }
auto fields(auto f, launch_done& x) {
  return f(x.step, x.launched, x.rank, x.begin, x.end, x.delay, x.late, x.released, x.held_bytes,
           x.device_memory);
}
auto fields(auto f, end_step& x) { return f(x.step); }
auto fields(auto f, rank_step_ended& x) {
  return f(x.step, x.rank, x.losses, x.norms, x.peak_bytes, x.in_collectives);
}
auto fields(auto f, stage_step_ended& x) {
  return f(x.step, x.replica, x.stage, x.losses, x.norms, x.memory, x.peak_bytes, x.device_memory,
           x.busy, x.blocked, x.behind, x.launch_gap, x.in_backward, x.in_weight, x.for_ranks,
           x.own, x.first_begin, x.last_end);
}
auto fields(auto f, apply_update& x) { return f(x.step, x.scale, x.lr); }
auto fields(auto f, step_summary& x) {
  return f(x.step, x.purpose, x.loss, x.shares, x.losses, x.gradient_norm, x.is_skipped, x.lr,
           x.tokens, x.step_ms, x.bubble_fraction, x.weight_shares);
}
auto fields(auto f, step_over& x) { return f(x.summary); }
auto fields(auto f, snapshot_taken& x) { return f(x.step, x.copy_time); }
auto fields(auto f, snapshot_written& x) { return f(x.step, x.file, x.bytes, x.xxh64, x.failure); }
auto fields(auto f, copy_offered& x) { return f(x.what, x.from, x.complete); }
auto fields(auto f, fetch_copy& x) { return f(x.what, x.to, x.offset, x.size); }
auto fields(auto f, copies_arrive&) { return f(); }
auto fields(auto f, keep_copies& x) { return f(x.record); }
auto fields(auto f, stage_weights& x) { return f(x.from, x.hashes, x.transcript); }
auto fields(auto f, report_progress&) { return f(); }
auto fields(auto f, stage_progress& x) { return f(x.text, x.state); }
auto fields(auto f, write_report& x) { return f(x.why, x.causes); }
auto fields(auto f, job_ended& x) {
  return f(x.how, x.message, x.nothing_lost, x.hung, x.summary, x.drained);
}

// clang-format off
/// The messages that travel between nodes; their order gives the codes on the wire.
#define RRFP_MESSAGES(X)                                                                   \
  X(restore_state) X(state_restored) X(begin_step) X(arrived) X(run_launch) X(launch_done) \
  X(end_step) X(rank_step_ended) X(stage_step_ended) X(apply_update) X(update_applied)     \
  X(step_over) X(state_ready) X(copy_taken) X(take_snapshot) X(snapshot_taken)             \
  X(snapshot_written) X(copy_state) X(copy_held) X(copy_offered) X(fetch_copy) X(copies_arrive) X(keep_copies)               \
  X(report_weights) X(stage_weights)                                                       \
  X(report_progress) X(stage_progress) X(report_requested) X(write_report) X(failed)       \
  X(interrupted) X(drain_asked) X(batch_given) X(job_ended) X(suspected)
/// The messages that stay on their node.
#define RRFP_LOCAL_MESSAGES(X)                                                             \
  X(start) X(stage_ranks) X(decide_now) X(node_lost) X(node_waits) X(demanded)             \
  X(save_ended) X(timer_fired) X(message) X(report_state) X(state_reported) X(report_due)   \
  X(stop)
// clang-format on

enum class message_code : std::uint8_t {
#define RRFP_CODE(message) message,
  RRFP_MESSAGES(RRFP_CODE)
#undef RRFP_CODE
};
#define RRFP_CODE(type) \
  constexpr message_code code_of(const type&) { return message_code::type; }
RRFP_MESSAGES(RRFP_CODE)
#undef RRFP_CODE

/// How long to wait for the membership to report the cause of a loss.
inline constexpr std::chrono::milliseconds unexplained_loss_time{3000};

/// Posts `m` to an actor of any node, from any thread.
template <class Message>
void post(const actor_ref& to, Message m) {
  if (to.here()) return post(to.here(), std::move(m));
  auto message = to.begin_message();
  auto code = code_of(m);
  message(code, m);
  to.send(std::move(message));
}

}  // namespace rrfp::actors

#define RRFP_ALLOW(message) RRFP_ALLOW_MESSAGE(rrfp::actors::message)
RRFP_MESSAGES(RRFP_ALLOW)
RRFP_LOCAL_MESSAGES(RRFP_ALLOW)
#undef RRFP_ALLOW

namespace rrfp::actors {

// CAF's code for sending a message takes long to compile: it is made once, in messages.cpp.
#define RRFP_DECLARE(message) extern template void post(const caf::actor&, message);
RRFP_MESSAGES(RRFP_DECLARE)
RRFP_LOCAL_MESSAGES(RRFP_DECLARE)
#undef RRFP_DECLARE
#define RRFP_DECLARE(message) extern template void post(const actor_ref&, message);
RRFP_MESSAGES(RRFP_DECLARE)
#undef RRFP_DECLARE

}  // namespace rrfp::actors

/// What the actors tell each other. A message is a struct; its type says what it means.
///
///   job -> node -> job          host_supervisors, supervisors_hosted, host_ranks, ranks_hosted
///   job -> node                 step_over, write_report, job_ended
///   node -> stage -> node       report_state, state_reported
///   job -> stage                stage_ranks, begin_step, apply_update, take_snapshot,
///                               report_weights, report_progress, stop
///   stage -> rank               the same but for stage_ranks, and run_launch, end_step
///   transport -> rank           message (transport.hpp)
///   rank -> stage               arrived, launch_done, rank_step_ended, update_applied,
///                               snapshot_taken, snapshot_written
///   stage -> job                stage_step_ended, update_applied, snapshot_taken,
///                               snapshot_written, stage_weights, stage_progress
///   anybody -> job              failed, node_lost, interrupted, report_requested
///   process -> job or node      node_lost, node_unreachable, interrupted, demand, report_requested
///
/// All but those marked local may go from one node to another. Times are nanoseconds since the run
/// began, on the clock of the job's node.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <rrfp/actors/session.hpp>
#include <rrfp/actors/transport.hpp>

#include "caf_compat.hpp"
#include "serialization.hpp"
#include "stage_state.hpp"

namespace rrfp::actors {

struct stage_handle {
  replica_id replica;
  stage_id stage;
  caf::actor supervisor;
};
struct rank_handle {
  rank_address address;
  caf::actor rank;
};

/// Spawn the supervisors of the stages whose rank 0 is yours.
struct host_supervisors {
  caf::actor job;
};
struct supervisors_hosted {
  std::vector<stage_handle> stages;
};
/// Spawn your ranks; `stages` are the supervisors of all nodes.
struct host_ranks {
  std::vector<stage_handle> stages;
};
struct ranks_hosted {
  std::vector<rank_handle> ranks;
};
/// The ranks of a stage, in their order.
struct stage_ranks {
  std::vector<caf::actor> ranks;
};

struct begin_step {
  step_id step;
  compute::step_purpose purpose = compute::step_purpose::training;
};
/// The input of a task is on a rank.
struct arrived {
  step_id step;
  task_kind kind = task_kind::forward;
  microbatch_id mb;
  chunk_id chunk;
  rank_id rank;
};
/// Local. A supervisor to itself: everything in the mailbox is seen, choose.
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
  /// When the receiver of its output had it, if the rank waited for that; else 0.
  std::int64_t received = 0;
  std::int64_t held_bytes = 0;
  accelerator::memory_counts device_memory = {};  ///< zeroes where it has none of its own
};
/// All tasks of the step are done: exchange tied gradients, if it is a training, and report.
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
  replica_id replica;
  stage_id stage;
  std::vector<compute::microbatch_loss> losses;
  std::vector<compute::parameter_norm> norms;
  memory_use memory;
  std::int64_t peak_bytes = 0;  ///< activation memory, measured, of the rank that held most
  accelerator::memory_counts device_memory = {};  ///< the most of a rank's device
  // Of the rank with most of it:
  std::int64_t busy = 0;        ///< in tasks
  std::int64_t blocked = 0;     ///< after tasks, until their output was received
  std::int64_t launch_gap = 0;  ///< free, while the stage waited for nothing
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
};
/// The step is over on all nodes.
struct step_over {
  step_summary summary;
};
/// Local. What is to be done next, if steps do not follow by themselves.
struct demand {
  enum class kind : std::uint8_t { train, evaluate, save, finish };
  kind wanted = kind::train;
};
/// Copy all tensors, between two steps, and have them written into the folder of the save.
struct take_snapshot {
  std::uint64_t step = 0;  ///< complete ones
};
/// The copy is made; the pipeline may go on.
struct snapshot_taken {
  std::uint64_t step = 0;
  std::int64_t copy_time = 0;
};
/// The rank's file is on the disk, or why not.
struct snapshot_written {
  std::uint64_t step = 0;
  std::string file;
  std::uint64_t bytes = 0;
  std::uint64_t xxh64 = 0;
  std::string failure;
};
/// Local. The checkpoint stands, or why not.
struct save_ended {
  std::uint64_t step = 0;
  std::string failure;
};
struct report_weights {};
struct stage_weights {
  rank_address from;
  std::vector<compute::parameter_hash> hashes;
  std::vector<std::string> transcript;
};
/// Answered even when nothing moves: who waits for what.
struct report_progress {};
struct stage_progress {
  std::string text;
  stage_state state;
};
/// Somebody wants to know who waits for what. To the job, which asks all stages and then has all
/// nodes write.
struct report_requested {
  std::string why;
};
/// Write your report: `causes` is what the job makes of the stages' answers.
struct write_report {
  std::string why;
  std::vector<std::string> causes;
};
/// Local. The job has waited long enough for the stages' answers.
struct inquiry_over {
  std::uint64_t number = 0;
};
/// Local. The nodes have had their time to write what the end of a hanging run leaves.
struct hang_reported {};
/// Local. A node to its supervisors, which answer even when nothing moves.
struct report_state {
  caf::actor to;
};
/// Local.
struct state_reported {
  replica_id replica;
  stage_id stage;
  std::string text;
};
/// Local. A node to itself: the job did not have it write, or its stages were slow.
struct report_due {
  std::uint64_t number = 0;
  bool asked = false;  ///< the job was
};
/// Drop all work; what runs is the last.
struct stop {};
struct failed {
  std::string message;
  /// The data's or the training's own, not the runtime's.
  bool by_input = false;
};
struct node_lost {
  std::string message;
};
/// Local. The transport has lost a node; who watches the nodes will say more, or it is a loss
/// itself.
struct node_unreachable {
  std::string message;
};
/// `again`: for the second time, by the same process; a patient end is not wanted any more.
struct interrupted {
  bool again = false;
};
/// Local. The job actor's own clock.
struct tick {};
/// The run is over: end all that is yours.
struct job_ended {
  ending how = ending::done;
  std::string message;
  bool nothing_lost = false;
  bool hung = false;
};

auto fields(auto f, stage_handle& x) { return f(x.replica, x.stage, x.supervisor); }
auto fields(auto f, rank_handle& x) { return f(x.address, x.rank); }
auto fields(auto f, host_supervisors& x) { return f(x.job); }
auto fields(auto f, supervisors_hosted& x) { return f(x.stages); }
auto fields(auto f, host_ranks& x) { return f(x.stages); }
auto fields(auto f, ranks_hosted& x) { return f(x.ranks); }
auto fields(auto f, stage_ranks& x) { return f(x.ranks); }
auto fields(auto f, begin_step& x) { return f(x.step, x.purpose); }
auto fields(auto f, arrived& x) { return f(x.step, x.kind, x.mb, x.chunk, x.rank); }
auto fields(auto f, run_launch& x) { return f(x.step, x.launched); }
auto fields(auto f, launch_done& x) {
  return f(x.step, x.launched, x.rank, x.begin, x.end, x.delay, x.received, x.held_bytes,
           x.device_memory);
}
auto fields(auto f, end_step& x) { return f(x.step); }
auto fields(auto f, rank_step_ended& x) {
  return f(x.step, x.rank, x.losses, x.norms, x.peak_bytes);
}
auto fields(auto f, stage_step_ended& x) {
  return f(x.step, x.replica, x.stage, x.losses, x.norms, x.memory, x.peak_bytes, x.device_memory,
           x.busy, x.blocked, x.launch_gap, x.first_begin, x.last_end);
}
auto fields(auto f, apply_update& x) { return f(x.step, x.scale, x.lr); }
auto fields(auto f, update_applied& x) { return f(x.step); }
auto fields(auto f, step_summary& x) {
  return f(x.step, x.purpose, x.loss, x.losses, x.gradient_norm, x.lr, x.tokens, x.step_ms,
           x.bubble_fraction);
}
auto fields(auto f, step_over& x) { return f(x.summary); }
auto fields(auto f, take_snapshot& x) { return f(x.step); }
auto fields(auto f, snapshot_taken& x) { return f(x.step, x.copy_time); }
auto fields(auto f, snapshot_written& x) { return f(x.step, x.file, x.bytes, x.xxh64, x.failure); }
auto fields(auto f, report_weights&) { return f(); }
auto fields(auto f, stage_weights& x) { return f(x.from, x.hashes, x.transcript); }
auto fields(auto f, report_progress&) { return f(); }
auto fields(auto f, stage_progress& x) { return f(x.text, x.state); }
auto fields(auto f, report_requested& x) { return f(x.why); }
auto fields(auto f, write_report& x) { return f(x.why, x.causes); }
auto fields(auto f, stop&) { return f(); }
auto fields(auto f, failed& x) { return f(x.message, x.by_input); }
auto fields(auto f, node_lost& x) { return f(x.message); }
auto fields(auto f, interrupted& x) { return f(x.again); }
auto fields(auto f, job_ended& x) { return f(x.how, x.message, x.nothing_lost, x.hung); }

/// How long the loss of a node may stay without the word of who watches the nodes.
inline constexpr std::chrono::milliseconds unexplained_loss_time{3000};

/// Names the messages that go between nodes.
void add_messages(caf::actor_system_config& config);

}  // namespace rrfp::actors

RRFP_LOCAL_MESSAGE(rrfp::actors::decide_now)
RRFP_LOCAL_MESSAGE(rrfp::actors::node_unreachable)
RRFP_LOCAL_MESSAGE(rrfp::actors::demand)
RRFP_LOCAL_MESSAGE(rrfp::actors::save_ended)
RRFP_LOCAL_MESSAGE(rrfp::actors::tick)
RRFP_LOCAL_MESSAGE(rrfp::actors::message)
RRFP_LOCAL_MESSAGE(rrfp::actors::inquiry_over)
RRFP_LOCAL_MESSAGE(rrfp::actors::hang_reported)
RRFP_LOCAL_MESSAGE(rrfp::actors::report_state)
RRFP_LOCAL_MESSAGE(rrfp::actors::state_reported)
RRFP_LOCAL_MESSAGE(rrfp::actors::report_due)

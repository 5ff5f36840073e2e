/// The members of the plain types in messages between nodes, for rrfp/base/codec.hpp.
#pragma once

#include <rrfp/actors/session.hpp>
#include <rrfp/compute/parameters.hpp>
#include <rrfp/compute/step_measures.hpp>
#include <rrfp/core/job_events.hpp>
#include <rrfp/core/message_header.hpp>
#include <rrfp/core/stage_snapshot.hpp>

namespace rrfp {

auto fields(auto f, task& x) { return f(x.kind, x.mb, x.chunk); }
auto fields(auto f, rank_address& x) { return f(x.stage, x.rank, x.replica); }
auto fields(auto f, microbatch_counts& x) { return f(x.by_replica); }
auto fields(auto f, microbatch_shares& x) { return f(x.counts, x.shares, x.order); }
auto fields(auto f, reason& x) { return f(x.why, x.skipped); }
auto fields(auto f, fold_range& x) { return f(x.first, x.count); }
auto fields(auto f, task_piece& x) { return f(x.number, x.count); }
auto fields(auto f, launch& x) { return f(x.seq, x.what, x.why, x.folds, x.piece, x.pass); }
auto fields(auto f, input_arrived& x) { return f(x.kind, x.mb, x.chunk, x.rank); }
auto fields(auto f, wait& x) { return f(x.why, x.head); }
auto fields(auto f, memory_use& x) {
  return f(x.slots, x.slots_peak, x.bytes, x.bytes_peak, x.activations, x.activations_peak);
}
auto fields(auto f, running_launch& x) { return f(x.launched, x.behind); }
auto fields(auto f, chunk_progress& x) {
  return f(x.activation, x.gradient, x.forward_early, x.forward_done, x.backward_done,
           x.weight_done);
}
auto fields(auto f, stage_snapshot& x) {
  return f(x.step, x.microbatches, x.running, x.waits, x.waiting, x.bound, x.memory, x.holders,
           x.ready, x.remaining, x.progress);
}

}  // namespace rrfp

namespace rrfp::job_event {

auto fields(auto f, state_restored&) { return f(); }
auto fields(auto f, update_applied& x) { return f(x.step); }
auto fields(auto f, batch_given& x) { return f(x.step); }
auto fields(auto f, copy_taken& x) { return f(x.step); }
auto fields(auto f, copy_held& x) { return f(x.step, x.failure); }
auto fields(auto f, report_requested& x) { return f(x.why); }
auto fields(auto f, failed& x) { return f(x.why.message, x.why.kind); }
auto fields(auto f, suspected& x) { return f(x.why.message, x.why.kind); }
auto fields(auto f, interrupted& x) { return f(x.again); }
auto fields(auto f, drain_asked& x) { return f(x.node); }

}  // namespace rrfp::job_event

namespace rrfp::job_action {

auto fields(auto f, restore_state&) { return f(); }
auto fields(auto f, state_ready&) { return f(); }
auto fields(auto f, take_snapshot& x) { return f(x.step); }
auto fields(auto f, copy_state& x) { return f(x.step, x.complete); }
auto fields(auto f, report_weights&) { return f(); }

}  // namespace rrfp::job_action

namespace rrfp::compute {

auto fields(auto f, microbatch_loss& x) { return f(x.mb, x.mean, x.tokens); }
auto fields(auto f, parameter_position& x) { return f(x.virtual_stage, x.index, x.rank); }
auto fields(auto f, parameter_norm& x) { return f(x.at, x.squared); }
auto fields(auto f, parameter_hash& x) { return f(x.at, x.xxh64); }
auto fields(auto f, memory_counts& x) { return f(x.allocated, x.allocated_peak, x.reserved); }

}  // namespace rrfp::compute

namespace rrfp::actors {

auto fields(auto f, stage_summary& x) {
  return f(x.memory, x.peak_bytes, x.device_memory, x.busy_ms, x.blocked_ms, x.launch_gap_ms,
           x.ranks_ms);
}
/// Without the stages, of which there may be many.
auto fields(auto f, run_summary& x) {
  return f(x.first_step, x.steps, x.skipped_steps, x.loss_first, x.loss_last, x.eval_loss,
           x.eval_losses_xxh64, x.losses_xxh64, x.weights_xxh64, x.step_ms_p50, x.bubble_fraction,
           x.tokens, x.seconds, x.checkpoints, x.last_checkpoint_failed);
}

}  // namespace rrfp::actors

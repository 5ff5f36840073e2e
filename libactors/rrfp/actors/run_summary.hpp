/// What a run tells the program that it belongs to: of each step, evaluation and save, and at the
/// end; and the delays that the program may inject.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/base/ids.hpp>
#include <rrfp/compute/step_measures.hpp>
#include <rrfp/core/memory.hpp>
#include <rrfp/core/message_header.hpp>

namespace rrfp {

struct task;

}  // namespace rrfp

namespace rrfp::actors {

struct step_summary {
  /// From 1. Training: the number of complete steps, this one included. Evaluation: its number
  /// within the run.
  std::uint64_t step = 0;
  compute::step_purpose purpose = compute::step_purpose::training;
  double loss = 0;  ///< mean over the tokens of the step, in nats
  /// How many microbatches each replica ran; empty: its own.
  std::vector<std::uint32_t> shares;
  /// The losses of all microbatches, ordered by replica.
  std::vector<compute::microbatch_loss> losses;
  double gradient_norm = 0;
  /// The gradient was infinite or NaN, so the parameters did not change (train.loss_scale).
  bool is_skipped = false;
  double lr = 0;
  std::int64_t tokens = 0;
  double step_ms = 0;
  /// 1 - time in tasks / (stages * time from the first task to the last).
  double bubble_fraction = 0;
  /// By stage: the share of its time in B, BW and W that went to W.
  std::vector<double> weight_shares;
};

/// An evaluation on held-out data.
struct evaluation_summary {
  std::uint64_t step = 0;  ///< complete training steps
  double loss = 0;         ///< mean over the tokens of all batches, in nats
  std::int64_t tokens = 0;
  double seconds = 0;
};

struct stage_summary {
  memory_use memory;            ///< peaks over the run
  std::int64_t peak_bytes = 0;  ///< activation memory, measured
  /// The maximum over the ranks' devices, which stages may share; zeroes if devices have no memory
  /// of their own.
  compute::memory_counts device_memory = {};
  double busy_ms = 0;        ///< in tasks, injected delays included
  double blocked_ms = 0;     ///< after tasks, for the output_gate
  double launch_gap_ms = 0;  ///< idle with a ready task: the runtime's own time
  /// Waits of wait_cause::ranks, and of ranks that had ended a task for those that had not.
  double ranks_ms = 0;
};

struct run_summary {
  std::uint64_t first_step = 0;     ///< complete before this run, which resumed from there
  std::uint64_t steps = 0;          ///< of this run
  std::uint64_t skipped_steps = 0;  ///< of them, without an update (train.loss_scale)
  double loss_first = 0;
  double loss_last = 0;
  std::optional<double> eval_loss;  ///< of the last evaluation; nothing: there was none
  /// Hashes of the bits of all losses (float64): each is hashed with the hash of those before it as
  /// the seed; and of all weights at the end.
  std::uint64_t eval_losses_xxh64 = 0;
  std::uint64_t losses_xxh64 = 0;
  std::uint64_t weights_xxh64 = 0;
  double step_ms_p50 = 0;
  double bubble_fraction = 0;  ///< over the whole run
  std::int64_t tokens = 0;
  double seconds = 0;
  std::uint32_t checkpoints = 0;        ///< saved
  bool last_checkpoint_failed = false;  ///< the last state was not saved
  std::vector<stage_summary> stages;

  std::uint32_t peak_slots() const;
  std::int64_t peak_bytes() const;
  compute::memory_counts device_memory() const;
};

/// The outcome of one save.
struct checkpoint_report {
  std::uint64_t step = 0;  ///< complete steps
  std::string failure;     ///< empty: the checkpoint is complete
  std::uint32_t files = 0;
  std::uint64_t bytes = 0;
  double copy_ms = 0;        ///< of the slowest rank
  double background_ms = 0;  ///< from the copy to the commit or failure
};

/// Injected delays, in milliseconds. Empty: none. Called concurrently.
struct injected_delays {
  std::function<double(step_id, const rank_address&, const task&)> compute;
  /// Delay of the message that carries the input of the task (F or B) to a rank of the virtual
  /// stage.
  std::function<double(step_id, virtual_stage_id, const rank_address&, const task&)> link;
};

}  // namespace rrfp::actors

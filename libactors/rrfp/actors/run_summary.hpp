/// The results that a run reports to its program after each step, evaluation and save, and at its
/// end; and the delays that the program may inject into a run.
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
  /// Number of microbatches that each replica ran; empty: each replica ran its own.
  std::vector<std::uint32_t> shares;
  /// The losses of all microbatches, in the order of their numbers over all replicas.
  std::vector<compute::microbatch_loss> losses;
  /// Before clipping; infinite if the step was skipped, 0 if the step had no update.
  double gradient_norm = 0;
  /// The gradient was infinite or NaN, so the parameters did not change (train.loss_scale).
  bool is_skipped = false;
  double lr = 0;
  std::int64_t tokens = 0;  ///< that enter the loss
  double step_ms = 0;       ///< duration, measured by the leading node
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
  // Sums over all steps, evaluations and replicas: of the mean over the ranks of the stage, for
  // launch_gap_ms of the maximum.
  double busy_ms = 0;        ///< in tasks, injected delays included
  double blocked_ms = 0;     ///< after tasks, until the output_gate let the rank continue
  double launch_gap_ms = 0;  ///< idle although a task was ready: the runtime's own time
  /// Time in which ranks of the stage waited for each other: wait_cause::ranks, and ranks that had
  /// finished a task and waited for those that had not.
  double ranks_ms = 0;
};

struct run_summary {
  std::uint64_t first_step = 0;     ///< steps that were complete before this run
  std::uint64_t steps = 0;          ///< steps of this run
  std::uint64_t skipped_steps = 0;  ///< how many of them had no update (train.loss_scale)
  double loss_first = 0;
  double loss_last = 0;
  std::optional<double> eval_loss;  ///< of the last one of [eval]; nullopt: there was none
  /// Hash of the float64 bits of all evaluation losses: each loss is hashed with the hash of the
  /// losses before it as the seed.
  std::uint64_t eval_losses_xxh64 = 0;
  std::uint64_t losses_xxh64 = 0;   ///< the same of the losses of the steps
  std::uint64_t weights_xxh64 = 0;  ///< of all weights at the end; 0 unless the run completed
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

/// Injected delays, in milliseconds, 1e9 at most; none below 0. An empty function injects none.
/// Both are called concurrently.
struct injected_delays {
  std::function<double(step_id, const rank_address&, const task&)> compute;
  /// Delay of the message that carries the input of the task (F or B) to a rank of the virtual
  /// stage.
  std::function<double(step_id, virtual_stage_id, const rank_address&, const task&)> link;
};

}  // namespace rrfp::actors

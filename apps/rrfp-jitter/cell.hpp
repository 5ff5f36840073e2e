/// A cell: one measurement of an experiment with everything that it depends on, and its outcome.
///
/// A cell is self-contained: two cells with equal descriptions have the same outcome in the
/// simulator, whatever experiment they belong to. jitter.seed determines weather and images. Runs
/// of the same workload, weather and seed are paired: they get the same images, task times and
/// delays.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <rrfp/study/pipeline_cost.hpp>

#include "experiment.hpp"

namespace rrfp::experiment {

struct cell {
  /// Names, for reports.
  std::string workload;
  std::string weather;
  std::string run;
  /// Runs train.steps steps. Wall clock: on emulated devices.
  job::job job = study::new_job();
  hint_quality hint = hint_quality::own;
  engine_kind engine = engine_kind::simulator;
  std::uint32_t nodes = 1;  ///< processes
  node_fault fault = {};
  /// The simulator alone knows another agreement than by arrivals.
  rank_agreement agreement = rank_agreement::arrivals;
  double gather_ms = default_gather_ms;
};

/// Cell `number`, which must be below e.cells().
cell cell_at(const experiment& e, std::size_t number, engine_kind engine);

/// What can be known before the cell runs; the error is that of job::check_job(), or names a key in
/// the same way.
status check_cell(const cell& c);

/// One line of key=value with everything that the outcome depends on: the keys of the job that
/// differ from their defaults, without names and the paper's figures. An engine that measures time
/// may give another outcome for the same line.
std::string description_of(const cell& c);

/// Detects changed content: FNV-1a, in hexadecimal; not a cryptographic hash.
std::string checksum(std::string_view text);

/// What a cell, or the cells of all seeds of a run, came to beside the times of the steps. Times
/// are in modelled milliseconds, independent of the wall clock's time scale. Memory is that of the
/// fullest device; bytes are 0 for workloads that give only the times of [cost].
struct figures {
  /// Share of all devices' time without a running task; `blocked` is the part spent in a send that
  /// was not yet received.
  double idle = 0;
  double blocked = 0;
  /// Tensor-parallel ranks, parts of `idle`: waiting for another rank's input or for its end of a
  /// task; exchanging picks; with a task that was ready on every rank while the picks differed.
  double ranks = 0;
  double gathering = 0;
  double deferred = 0;
  /// Sums over all stages and steps.
  agreement_counts agreement;
  /// Real time: time per mean step in which a device was free and its stage waited for nothing, on
  /// the stage with the most: the runtime's own overhead.
  double launch_gap_ms = 0;
  /// Peak number of microbatches held at once, on the stage that held the most.
  std::uint32_t slots_peak = 0;
  /// Peak of the activations, and of activations plus weights, gradients and optimizer state.
  std::uint64_t activation_bytes_peak = 0;
  std::uint64_t held_bytes_peak = 0;

  /// Adds one of `parts`: shares and times are means, counts are sums, the larger peaks count.
  void add(const figures& part, double parts);
};

struct outcome : figures {
  /// Duration of each step: the slowest replica plus the gradient exchange.
  std::vector<double> step_ms;

  double mean_ms() const;
};

/// What a stage of a cell did, from which engines make the outcome.
struct stage_time {
  double busy_ms = 0;
  double blocked_ms = 0;
  double ranks_ms = 0;
  double gathering_ms = 0;
  double deferred_ms = 0;
  agreement_counts agreement;
  memory_use memory;
  double launch_gap_ms = 0;
};

/// Adds up what the replicas of a cell did, one after the other or all at once. Times are in
/// modelled milliseconds.
class outcome_sum {
 public:
  /// The cell must pass check_cell().
  explicit outcome_sum(const cell& c);

  void add(const std::vector<double>& step_ms, const std::vector<stage_time>& stages);
  outcome finish();

 private:
  std::shared_ptr<const study::pipeline_cost> model_;
  double replicas_;
  double devices_;
  outcome made_;  ///< until finish(), its shares are sums of milliseconds
  double busy_ms_ = 0;
};

/// Runs a cell in the simulator. Thread-safe, as the other engines. Errors: those of check_cell(),
/// and what cannot be known in advance, such as a schedule that stalls.
result<outcome> run_in_simulator(const cell& c);

/// Runs a cell on the actor runtime in this process: every stage and every rank is an actor on an
/// emulated device, each replica a session of its own, and time is real. Task and link times are
/// those of the simulator, multiplied by the time scale; all else (mailboxes, decisions,
/// coordination of ranks) is real. Several cells may run at once if the machine has spare cores.
result<outcome> run_on_wall_clock(const cell& c);

/// The outcomes of one engine for all cells of an experiment, in the order of the cells.
struct engine_outcomes {
  engine_kind engine = engine_kind::simulator;
  std::vector<outcome> outcomes;
};

}  // namespace rrfp::experiment

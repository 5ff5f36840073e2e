/// An experiment: a matrix of jobs, read from one TOML file and validated.
///
/// The keys of a job before the first [[...]] are the base of all cells, or change the job that
/// `job` names. Each [[workload]], [[run]] and [[weather]] changes further keys, like [[compare]].
/// A list for a key that takes one value expands the entry to one for each value. A cell is the
/// base with one entry of each kind, and one of the seeds as jitter.seed.
///
///   name = "an example"
///   seeds = [1, 2, 3]
///   baseline = "1F1B blocking"                 # speed-ups are relative to this run
///   ablation = ["1F1B blocking", "1F1B", ...]  # each run's gain over the one before it
///   train.steps = 3
///
///   [[workload]]                # the model and its machine
///   name = "GPT3-Large TP1 PP8"
///   cost.preset = "gpt3-large"
///   pipeline.stages = 8
///   paper.bfw = 1.56            # the paper's speed-ups, printed beside ours
///
///   [[run]]                     # the schedule
///   name = "BFW"
///   dispatch.policy = "bfw"
///   dispatch.run_ahead = [8, 32]
///
///   [[weather]]                 # the disturbances
///   jitter.level = "measured"
///
/// Errors are those of jobs: one line with file, line, key, what was expected and what came.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/job/overrides.hpp>
#include <rrfp/study/options.hpp>

#include "candidates.hpp"

namespace rrfp::experiment {

/// The paper's figures for a workload: speed-ups over its 1F1B; 0: not given.
struct paper_figures {
  /// Seconds per iteration.
  double in_order_s = 0;
  double zb = 0;
  double bf = 0;
  double bfw = 0;
};

/// The paper's figure that a run is compared with.
enum class paper_column : std::uint8_t { none, zb, bf, bfw };
inline constexpr std::string_view paper_columns[] = {"none", "zb", "bf", "bfw"};

double figure_of(const paper_figures& p, paper_column column);

/// How a run derives its hint from the policy.
///
/// own: the policy itself. reversed, shuffled: a bad hint (apps/rrfp-jitter/hints.hpp). calm:
/// the fixed order that the policy gives without disturbances. stale: the fixed order that it gave
/// in the same weather with another seed and therefore with other images, like an outdated profile.
enum class hint_quality : std::uint8_t { own, reversed, shuffled, calm, stale };
inline constexpr std::string_view hint_qualities[] = {"own", "reversed", "shuffled", "calm",
                                                      "stale"};
inline std::string_view name(hint_quality q) { return hint_qualities[static_cast<std::size_t>(q)]; }

/// The paper's Table 3, with two ranks.
inline constexpr double default_gather_ms = 0.16;

/// What happens to a node of a real job, once.
///
/// kill: SIGKILL; the launcher starts the node again, and the job recovers. stop: SIGSTOP for
/// `seconds`.
enum class fault_kind : std::uint8_t { none, kill, stop };
inline constexpr std::string_view fault_kinds[] = {"none", "kill", "stop"};
inline std::string_view name(fault_kind kind) {
  return fault_kinds[static_cast<std::size_t>(kind)];
}

struct node_fault {
  fault_kind kind = fault_kind::none;
  std::uint32_t node = 0;
  std::uint64_t step = 1;  ///< complete steps when it happens
  double seconds = 3;
};

/// A [[workload]], [[run]] or [[weather]]; what only another kind has keeps its default.
struct entry {
  std::string name;
  /// Keys of a job.
  job::overrides settings{study::schema()};
  // A workload:
  paper_figures paper;
  /// Time of one all-gather of the ranks' picks.
  double gather_ms = default_gather_ms;
  // A run:
  hint_quality hint = hint_quality::own;
  paper_column column = paper_column::none;
  rank_agreement agreement = rank_agreement::arrivals;
  // A weather:
  node_fault fault;
};

struct workload_entry : entry {
  /// The base with the keys of this workload.
  job::job job = study::new_job();
};

struct run_entry : entry {
  /// See mode_of(); of the first workload.
  std::string_view mode;
};

/// "ready", "in-order", or "blocking" for in-order with blocking messages.
std::string_view mode_of(const job::job& j);

/// simulator: virtual time. wall_clock: the actor runtime on emulated devices, in one process.
/// processes: a job of several nodes on this machine, with messages of their real size; it trains
/// the model of the job if device.kind is not "emulated".
enum class engine_kind : std::uint8_t { simulator, wall_clock, processes };
/// For messages, by enumerator.
inline constexpr std::string_view engine_names[] = {"simulator", "wall clock", "processes"};
inline std::string_view name(engine_kind kind) {
  return engine_names[static_cast<std::size_t>(kind)];
}

/// What the key `engine` and the option of rrfp-jitter may say.
inline constexpr std::string_view engine_words[] = {"simulator", "wall-clock", "both", "processes"};
/// The engines that one of these words names.
std::vector<engine_kind> engines_of(std::string_view word);

/// Cells are numbered from 0. The workload varies slowest, then the weather, the run and the seed.
struct experiment {
  std::string name;
  std::string source;
  /// In the order of the enumerators.
  std::vector<engine_kind> engines{engine_kind::simulator};
  /// Emulated devices: ratio of their time to the modelled time (device.time_scale).
  double time_scale = 1;
  /// Processes: of each job.
  std::uint32_t nodes = 2;
  std::vector<std::uint32_t> seeds{1, 2, 3};
  /// Number of steps of each cell (train.steps).
  std::uint64_t steps = 3;
  /// Name of a run; empty: the first run.
  std::string baseline;
  /// Names of runs; empty: no table.
  std::vector<std::string> ablation;
  std::vector<workload_entry> workloads;
  std::vector<run_entry> runs;
  std::vector<entry> weathers;

  std::size_t cells() const {
    return workloads.size() * weathers.size() * runs.size() * seeds.size();
  }
  /// The first cell of a run; the cells of its seeds are contiguous.
  std::size_t first_cell(std::size_t workload, std::size_t weather, std::size_t run) const {
    return ((workload * weathers.size() + weather) * runs.size() + run) * seeds.size();
  }
  /// Index of the run with this name; an unknown name is a programmer's error.
  std::size_t run_index(std::string_view name) const;
};

inline constexpr std::size_t cells_max = 100'000;
inline constexpr std::uint64_t steps_max = 100'000;
/// Limit of a workload: stages * tp * replicas.
inline constexpr std::uint64_t ranks_max = 4096;

/// Whether an outcome may depend on this key of a job. Others are accepted only in a job file.
bool is_cell_key(std::string_view key);

result<experiment> load_experiment(const std::string& path);
/// `source` replaces the path in errors.
result<experiment> parse_experiment(std::string_view text, const std::string& source);

/// Every key with its type, default and meaning, as plain text lines.
std::string experiment_reference();

}  // namespace rrfp::experiment

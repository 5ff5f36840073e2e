/// An experiment: workloads x runs x weather x seeds, read from one TOML file and proved runnable.
///
///   name = "an example"
///   seeds = [1, 2, 3]
///   steps = 3
///   baseline = "1F1B blocking"                 # the run that speed-ups are told against
///   ablation = ["1F1B blocking", "1F1B", ...]  # each run's gain over the one before it
///
///   [[workload]]              # what is trained, on what: a preset, or [cost] as in a job, or
///                             # profile = "FILE.toml", the [cost] of a file
///   name = "GPT3-Large TP1 PP8"
///   preset = "gpt3-large"
///   stages = 8
///   paper.bfw = 1.56          # the paper's speed-ups, printed beside ours
///
///   [[run]]                   # how it is scheduled; lists mean one run for each combination
///   name = "BFW"
///   mode = "ready"
///   policy = "bfw"
///   run_ahead = [8, 32]
///
///   [[weather]]               # what it meets
///   name = "measured"
///   preset = "measured"
///
/// Errors are those of jobs: one line with file, line, key, what was expected and what came.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/job/options.hpp>
#include <rrfp/schedule/result.hpp>
#include <rrfp/weather/conditions.hpp>
#include <rrfp/workload/images.hpp>
#include <rrfp/workload/machine.hpp>

namespace rrfp::experiment {

/// How a fixed order or a hint drives the stages, and by which transport.
/// blocking: in order, send and receive meet (simulate::transport). in_order: in order,
/// asynchronous. ready: readiness, asynchronous.
enum class run_mode : std::uint8_t { blocking, in_order, ready };

std::string_view name(run_mode mode);

/// The paper's figures for a workload: speed-ups over its 1F1B; 0: none given.
struct paper_figures {
  /// Seconds of an iteration.
  double in_order_s = 0;
  double zb = 0;
  double bf = 0;
  double bfw = 0;
};

/// Which of the paper's figures a run is compared with.
enum class paper_column : std::uint8_t { none, zb, bf, bfw };

double figure_of(const paper_figures& p, paper_column column);

struct workload_options {
  std::string name;
  /// A workload::preset(), or empty: the times of `cost`.
  std::string preset;
  /// The file that `cost` was read from, or empty. What it said counts, not its name.
  std::string profile;
  std::uint32_t stages = 4;
  /// Of each replica, in a step.
  std::uint32_t microbatches = 16;
  std::uint32_t tp = 1;
  std::uint32_t replicas = 1;
  /// In a microbatch.
  std::uint32_t samples = 1;
  /// Of a sample, in the decoder; 0: the preset's.
  std::uint32_t sequence_tokens = 0;
};

/// The machine, in the units that people write.
struct machine_options {
  double tflops = 165.2;
  double memory_gb_s = 1008;
  double memory_gib = 24;
  std::uint32_t group = 8;
  double within_gb_s = 16;
  double within_us = 10;
  double between_gb_s = 25;
  double between_us = 5;
  double efficiency = 0.5;
};

workload::machine machine_of(const machine_options& options);

struct workload_entry {
  workload_options is;
  machine_options machine;
  workload::image_counts images;
  job::cost_options cost;
  paper_figures paper;
};

/// Slots that are no number. Of each stage, what 1F1B holds, min(p - s, m); or what 1F1B holds on
/// the first stage and ZB-H1 on all of them, min(p, m).
inline constexpr std::uint32_t slots_of_1f1b = ~0U;
inline constexpr std::uint32_t slots_of_stages = ~0U - 1;

/// What a run makes of its policy before it is hinted with.
///
/// own: nothing. reversed, shuffled: a bad hint (rrfp/policies/distorted.hpp). calm: the fixed
/// order that the policy gives without weather. stale: the fixed order that it gave in the same
/// weather with another seed, so with other images, too: a profile of another day.
enum class hint_quality : std::uint8_t { own, reversed, shuffled, calm, stale };

std::string_view name(hint_quality quality);

struct run_options {
  std::string name;
  run_mode mode = run_mode::ready;
  std::string policy = "bfw";
  hint_quality hint = hint_quality::own;
  /// How much later than they arrive a stage hears of its inputs.
  double notice_ms = 0;
  /// 0: no limit; nothing: min(2 * stages, microbatches) in mode ready, else no limit.
  std::optional<std::uint32_t> slots;
  /// Of activations on a stage together; 0: no limit.
  std::uint64_t slot_bytes = 0;
  std::uint32_t run_ahead = 0;
  admission admit = admission::loaded;
  paper_column paper = paper_column::none;
  /// What the table of the policy says, or empty. Its name does not tell two of them apart.
  std::string table = {};
};

struct weather_entry {
  std::string name;
  weather::conditions is;
};

/// simulator: in virtual time. wall_clock: the actor runtime on emulated devices.
enum class engine_kind : std::uint8_t { simulator, wall_clock };

std::string_view name(engine_kind kind);

/// Cells are numbered from 0: workload by workload, in each weather by weather, in each run by run,
/// in each seed by seed.
struct experiment {
  std::string name;
  std::string source;
  /// In the order of the enumerators.
  std::vector<engine_kind> engines{engine_kind::simulator};
  /// Of the wall clock: its time over the modelled time.
  double time_scale = 1;
  std::vector<std::uint64_t> seeds{1, 2, 3};
  std::uint64_t steps = 3;
  /// The name of a run; empty: the first.
  std::string baseline;
  /// Names of runs; empty: no table.
  std::vector<std::string> ablation;
  std::vector<workload_entry> workloads;
  std::vector<run_options> runs;
  std::vector<weather_entry> weathers;

  std::size_t cells() const {
    return workloads.size() * weathers.size() * runs.size() * seeds.size();
  }
  /// Index of a run by name; a name that is no run is a programmer's error.
  std::size_t run_index(std::string_view name) const;
};

inline constexpr std::size_t cells_max = 100'000;
/// Of a workload: stages * microbatches, and stages * tp * replicas.
inline constexpr std::uint64_t tasks_max = std::uint64_t{1} << 20;
inline constexpr std::uint64_t ranks_max = 4096;

result<experiment> load_experiment(const std::string& path);
/// `source` stands for the path.
result<experiment> parse_experiment(std::string_view text, const std::string& source);

/// Every key with type, default and meaning, as plain lines.
std::string experiment_reference();

}  // namespace rrfp::experiment

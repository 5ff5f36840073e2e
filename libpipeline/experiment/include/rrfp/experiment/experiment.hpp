/// An experiment: workloads x runs x weather x seeds, read from one TOML file and validated.
///
///   name = "an example"
///   seeds = [1, 2, 3]
///   steps = 3
///   baseline = "1F1B blocking"                 # speed-ups are relative to this run
///   ablation = ["1F1B blocking", "1F1B", ...]  # each run's gain over the one before it
///
///   [[workload]]              # the model and its machine: a preset, [cost] as in a job, or
///                             # profile = "FILE.toml", a file that holds [cost]
///   name = "GPT3-Large TP1 PP8"
///   preset = "gpt3-large"
///   stages = 8
///   paper.bfw = 1.56          # the paper's speed-ups, printed beside ours
///
///   [[run]]                   # the schedule; lists expand to one run for each combination
///   name = "BFW"
///   mode = "ready"
///   policy = "bfw"
///   run_ahead = [8, 32]
///
///   [[weather]]               # the disturbances
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

#include <rrfp/base/result.hpp>
#include <rrfp/job/options.hpp>
#include <rrfp/weather/conditions.hpp>
#include <rrfp/workload/images.hpp>
#include <rrfp/workload/machine.hpp>

namespace rrfp::experiment {

/// How the sequence or hint drives the stages, and over which transport.
/// blocking: in order; send and receive are paired (simulate::transport). in_order: in order,
/// asynchronous. ready: by readiness, asynchronous.
enum class run_mode : std::uint8_t { blocking, in_order, ready };

std::string_view name(run_mode mode);

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

double figure_of(const paper_figures& p, paper_column column);

struct workload_options {
  std::string name;
  /// Name of a workload::preset(); empty: the task times are those of `cost`.
  std::string preset;
  /// The file that `cost` was read from, or empty. Descriptions use its contents, not its name.
  std::string profile;
  std::uint32_t stages = 4;
  /// Per replica and step.
  std::uint32_t microbatches = 16;
  std::uint32_t tp = 1;
  std::uint32_t replicas = 1;
  /// Per microbatch.
  std::uint32_t samples = 1;
  /// Decoder tokens per sample; 0: the preset's value.
  std::uint32_t sequence_tokens = 0;
};

/// The machine, in the units of the experiment file.
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
  workload_options options;
  machine_options machine;
  workload::image_counts images;
  job::cost_options cost;
  paper_figures paper;
};

/// Special values of `slots`. slots_of_1f1b: what 1F1B holds on each stage, min(p - s, m).
/// slots_of_stages: what 1F1B holds on the first stage and ZB-H1 on all of them, min(p, m).
inline constexpr std::uint32_t slots_of_1f1b = ~0U;
inline constexpr std::uint32_t slots_of_stages = ~0U - 1;

/// How a run derives its hint from the policy.
///
/// own: the policy itself. reversed, shuffled: a bad hint (rrfp/policies/distorted.hpp). calm: the
/// fixed order that the policy gives without disturbances. stale: the fixed order that it gave in
/// the same weather with another seed and therefore with other images, like an outdated profile.
enum class hint_quality : std::uint8_t { own, reversed, shuffled, calm, stale };

std::string_view name(hint_quality quality);

struct run_options {
  std::string name;
  run_mode mode = run_mode::ready;
  std::string policy = "bfw";
  hint_quality hint = hint_quality::own;
  /// Delay between the arrival of an input and its delivery to the stage.
  double notice_ms = 0;
  /// 0: no limit; empty: min(2 * stages, microbatches) in mode ready, else no limit.
  std::optional<std::uint32_t> slots;
  /// Maximum bytes of activations on a stage; 0: no limit.
  std::uint64_t slot_bytes = 0;
  std::uint32_t run_ahead = 0;
  admission admit = admission::loaded;
  paper_column paper = paper_column::none;
  /// Contents of the policy's table file, or empty; distinguishes tables with the same name.
  std::string table = {};
};

struct weather_entry {
  std::string name;
  weather::conditions conditions;
};

/// simulator: virtual time. wall_clock: the actor runtime on emulated devices.
enum class engine_kind : std::uint8_t { simulator, wall_clock };

std::string_view name(engine_kind kind);

/// Cells are numbered from 0. The workload varies slowest, then the weather, the run and the seed.
struct experiment {
  std::string name;
  std::string source;
  /// In the order of the enumerators.
  std::vector<engine_kind> engines{engine_kind::simulator};
  /// Wall clock: ratio of its time to the modelled time.
  double time_scale = 1;
  std::vector<std::uint64_t> seeds{1, 2, 3};
  std::uint64_t steps = 3;
  /// Name of a run; empty: the first run.
  std::string baseline;
  /// Names of runs; empty: no table.
  std::vector<std::string> ablation;
  std::vector<workload_entry> workloads;
  std::vector<run_options> runs;
  std::vector<weather_entry> weathers;

  std::size_t cells() const {
    return workloads.size() * weathers.size() * runs.size() * seeds.size();
  }
  /// Index of the run with this name; an unknown name is a programmer's error.
  std::size_t run_index(std::string_view name) const;
};

inline constexpr std::size_t cells_max = 100'000;
/// Limits of a workload: stages * microbatches, and stages * tp * replicas.
inline constexpr std::uint64_t tasks_max = std::uint64_t{1} << 20;
inline constexpr std::uint64_t ranks_max = 4096;

result<experiment> load_experiment(const std::string& path);
/// `source` replaces the path in errors.
result<experiment> parse_experiment(std::string_view text, const std::string& source);

/// Every key with its type, default and meaning, as plain text lines.
std::string experiment_reference();

}  // namespace rrfp::experiment

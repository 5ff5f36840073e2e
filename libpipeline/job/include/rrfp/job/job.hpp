/// A job: everything that a run is asked to do, read from one TOML file and proved runnable.
///
/// One table of keys (schema.cpp) says what a job file may hold; parsing, errors, overrides, the
/// dump and the reference all follow from it. What can be known without running is checked on load.
/// An error is one line that names the place, the key, what was expected and what came:
///
///   apps/jobs/x.toml:12: pipeline.stages: expected an integer >= 1, got 0
///   --set pipeline.stages=0: expected an integer >= 1, got 0
///
/// All functions are pure but for the files that they read, and thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/job/options.hpp>
#include <rrfp/schedule/result.hpp>
#include <rrfp/weather/options.hpp>

namespace rrfp::job {

/// A key and its value, written as TOML.
struct setting {
  std::string key;
  std::string value;
};

enum class collectives_kind : std::uint8_t { nccl, host };

/// [device] of kind cuda.
struct cuda_options {
  /// Those of a machine that its ranks share; empty: all.
  std::vector<std::uint32_t> gpus;
  bool deterministic = true;
  /// How ranks sum; nothing: nccl, where every rank has a device of its own.
  std::optional<collectives_kind> collectives;
};

/// [[compare]] one of several runs of the same job: its name and what it changes.
struct variant {
  std::string name;
  std::vector<setting> settings;
};

struct job {
  /// The file's name without extension unless the file says otherwise.
  std::string name;
  /// Where the job was read from.
  std::string source;
  pipeline_options pipeline;
  dispatch_options dispatch;
  model_options model;
  /// Paths are absolute.
  data_options data;
  train_options train;
  weather::jitter_options jitter;
  /// The path is absolute.
  delay_options delays;
  cost_options cost;
  device_options device;
  cuda_options cuda;
  transport_options transport;
  /// The path is absolute.
  checkpoint_options checkpoint;
  run_options run;
  std::vector<variant> compare;
  /// What whoever started the run should be told of how the job was read, a line each.
  std::vector<std::string> notes;
  /// Where keys were set: "FILE:LINE: KEY" or "--set KEY=VALUE". Those at their default are absent.
  std::map<std::string, std::string, std::less<>> set_by;
};

/// An error that shows after loading, when what a key names is looked at: "FILE:LINE: KEY:
/// message".
error blame(const job& j, std::string_view key, const std::string& message);

/// Whether the same run is asked for; `source`, `notes` and `set_by` do not matter.
bool operator==(const job& a, const job& b);

/// What the job is read for. A simulation needs no data, and its stages need no layers of a model;
/// a program that embeds the runtime brings both itself.
enum class job_use : std::uint8_t { train, simulate, embed };

/// Largest job file, in bytes.
inline constexpr std::size_t job_bytes_max = std::size_t{1} << 20;

/// Reads and checks the job and each of its variants. `overrides` are "section.key=value", applied
/// in order; value is TOML, quotes around a string may be left out. An override of a key that a
/// variant sets leaves the variants out, and a note says so. Relative paths are relative to the
/// folder of the job file, in overrides to the current one.
result<job> load_job(const std::string& path, std::span<const std::string> overrides = {},
                     job_use use = job_use::train);

/// The same for a text in memory; `source_name` stands for the path.
result<job> parse_job(std::string_view text, const std::string& source_name,
                      std::span<const std::string> overrides = {}, job_use use = job_use::train);

/// The jobs to run, named after their variants; the job itself if it compares nothing. Each variant
/// has its checkpoints in a folder of its name in checkpoint.dir. `j` comes from load_job(): a
/// setting that is not valid is a programmer's error.
std::vector<job> variants(const job& j);

/// The sizes of the pipeline, with the placement that holds if the job names none.
pipeline_shape effective_shape(const job& j);

/// What `stage` may hold. Slots that the job leaves open: min(2 * stages, microbatches) in ready
/// mode, no limit in order, where the sequence is its own limit.
memory_limit effective_limit(const job& j, stage_id stage);

/// The entry of a list of [cost] that holds for a virtual stage.
double cost_at(std::span<const double> list, const pipeline_shape& shape, virtual_stage_id vs);

/// What must be the same for a run to go on where another has stopped: the model, the seed, the
/// optimizer, how much data a step takes. In the order of the reference. Paths are no part of it:
/// data is known by its contents.
std::vector<setting> identity(const job& j);

/// The model that an identity() is of. Error: a key or value that no job has.
result<model_options> model_of(std::span<const setting> identity);

/// What shapes the rest of a training and may be changed on the way, to other results than without:
/// the rest of [train], and over how many ranks sums are taken.
std::vector<setting> course(const job& j);

/// Every key with its value, in the order of the reference; parse_job() reads it back to the same
/// job.
std::string to_toml(const job& j);

/// All keys with type, default and meaning: one page of Markdown.
std::string job_reference_markdown();

/// The same as plain lines, for a terminal.
std::string job_reference_text();

}  // namespace rrfp::job

/// A job: the description of a run, read from one TOML file and validated.
///
/// One table of keys (schema.cpp) defines what a job file may hold; parsing, errors, overrides, the
/// dump and the reference all use it. load_job() checks everything that can be known before the
/// run. An error is one line that names the place, the key, what was expected and what came:
///
///   apps/jobs/x.toml:12: pipeline.stages: expected an integer >= 1, got 0
///   --set pipeline.stages=0: expected an integer >= 1, got 0
///
/// All functions are thread-safe and have no side effects; some read files.
#pragma once

#include <any>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/base/setting.hpp>
#include <rrfp/core/policy.hpp>
#include <rrfp/job/options.hpp>
#include <rrfp/simulate/conditions.hpp>

namespace rrfp::job {

class schema;

enum class collectives_kind : std::uint8_t { nccl, host };

/// [device] of kind cuda.
struct cuda_options {
  /// Numbers of the devices that the ranks of a machine share; empty: all.
  std::vector<std::uint32_t> gpus;
  bool deterministic = true;
  /// How ranks sum; nothing: nccl if every rank has its own device, else host.
  std::optional<collectives_kind> collectives;
};

/// [[compare]]: one of several runs of a job, with its name and the settings that it changes.
struct variant {
  std::string name;
  std::vector<setting> settings;
};

struct job {
  /// The default is the file's name without its extension.
  std::string name;
  /// Where the job was read from.
  std::string source;
  pipeline_options pipeline;
  dispatch_options dispatch;
  model_options model;
  /// Paths are absolute.
  data_options data;
  eval_options eval;
  train_options train;
  simulate::conditions jitter;
  /// The path is absolute.
  delay_options delays;
  cost_options cost;
  device_options device;
  cuda_options cuda;
  transport_options transport;
  /// The path is absolute.
  checkpoint_options checkpoint;
  recovery_options recovery;
  run_options run;
  std::vector<variant> compare;
  /// Notes for the user on how the job was read, one line each.
  std::vector<std::string> notes;
  /// The place where each key was set: "FILE:LINE: KEY" or "--set KEY=VALUE". Keys at their default
  /// are absent.
  std::map<std::string, std::string, std::less<>> set_by;
  /// The keys that it may have; null: those of runtime_schema().
  const schema* read_with = nullptr;
  /// The values of the keys that runtime_schema() lacks.
  std::any extra;
};

/// The keys of the runtime, which every program knows (rrfp/job/schema.hpp). Only programs of
/// this tree have others: the headers of schemas are not installed.
const schema& runtime_schema();

/// "FILE:LINE: KEY: message", for an error that is found after loading, for example in a file that
/// the key names.
error blame(const job& j, std::string_view key, const std::string& message);

/// Whether two jobs describe the same run; ignores `source`, `notes` and `set_by`.
bool operator==(const job& a, const job& b);

/// What the job is read for. A simulation needs neither data nor a model that fits the pipeline. A
/// program that embeds the runtime provides its own model and data.
enum class job_use : std::uint8_t { train, simulate, embed };

/// Maximum size of a job file, in bytes.
inline constexpr std::size_t job_bytes_max = std::size_t{1} << 20;

/// Reads and checks the job and each of its variants. `policies`: those that dispatch.policy may
/// name. `overrides` are "section.key=value", applied in order; the value is TOML, but a string
/// needs no quotes. If an override sets a key that a variant also sets, the variants are dropped
/// and a note says so. Relative paths are relative to the folder of the job file; in overrides, to
/// the current folder. The keys are those of the runtime, or of a schema with more, which must
/// outlive the job.
result<job> load_job(const std::string& path, const policy_registry& policies,
                     std::span<const std::string> overrides = {}, job_use use = job_use::train,
                     const schema& known = runtime_schema());

/// The same for a text in memory; `source_name` replaces the path in errors.
result<job> parse_job(std::string_view text, const std::string& source_name,
                      const policy_registry& policies, std::span<const std::string> overrides = {},
                      job_use use = job_use::train, const schema& known = runtime_schema());

/// The checks of load_job() for a job that a program made or changed: that each value is in the
/// range of its key, and that the values fit each other, the disk and the policy. The error names
/// the place of the key, or "the job: KEY" if no file set it. Variants are not checked.
status check_job(const job& j, const policy_registry& policies, job_use use);

/// One job for each variant, with its name; the job itself if it has no variants. Each variant gets
/// a subfolder of checkpoint.dir with its name. `j` must come from load_job(): an invalid setting
/// is a programmer's error.
std::vector<job> variants(const job& j);

/// The dimensions of the pipeline, with the default placement if the job names none.
pipeline_shape effective_shape(const job& j);

/// The memory limits of `stage`. If the job sets no slots: 2 * stages in ready mode; no limit in
/// order, where the sequence itself bounds the memory.
memory_limit effective_limit(const job& j, stage_id stage);
/// [data] with the sources of [eval], in the order of the files. Nothing: there is no held-out
/// data.
std::optional<data_options> held_out_data(const job& j);

/// The number of layers of each part of [model] with [vision], by virtual stage, as pipeline.cuts
/// says. If an extension of the schema replaces the costs, pipeline.cuts divides the layers of the
/// extension, and those of [model] are divided evenly. Requires at least as many layers as parts.
std::vector<std::uint32_t> layers_of_parts(const job& j);

/// Whether [cost] holds a value for each layer: a number of values that is neither 1 nor one per
/// stage or virtual stage.
bool has_layer_times(const job& j);
/// The entry of cost.speed for a stage.
double speed_of(const job& j, stage_id stage);

/// The settings that must be equal for a run to resume from another run's checkpoint: the model,
/// the seed, the optimizer, and the amount of data per step. In the order of the reference. Without
/// paths: data is identified by its contents.
std::vector<setting> identity(const job& j);

/// The model that an identity() describes. Errors: an unknown key, an invalid value.
result<model_options> model_of(std::span<const setting> identity);

/// The settings that may change when a run resumes but that change its results: the rest of
/// [train], and the number of ranks over which sums are taken.
std::vector<setting> course(const job& j);

/// The settings that differ from the defaults, except the name, in the order of the reference.
std::vector<setting> changes(const job& j);

/// Every key with its value, in the order of the reference; parse_job() restores the same job.
std::string to_toml(const job& j);

/// All keys with type, default and meaning, as one page of Markdown.
std::string job_reference_markdown(const schema& known = runtime_schema());

/// The same as plain text lines, for a terminal.
std::string job_reference_text(const schema& known = runtime_schema());

}  // namespace rrfp::job

/// What a study adds to a job: the paper's mechanisms, and a model on a machine in place of the
/// times of [cost]. Plain data.
#pragma once

#include <cstdint>
#include <string>

#include <rrfp/job/job.hpp>
#include <rrfp/study/machine.hpp>
#include <rrfp/study/spreads.hpp>

namespace rrfp::study {

/// blocking: send and receive are paired, as in frameworks with fixed schedules
/// (rrfp/simulate/simulator.hpp).
enum class messages_kind : std::uint8_t { asynchronous, blocking };

/// Further keys of [dispatch].
struct dispatch_options {
  messages_kind messages = messages_kind::asynchronous;
  /// As memory_limit::run_ahead.
  std::uint32_t run_ahead = 0;
};

/// Further keys of [cost].
struct cost_options {
  /// Name of a preset(), a model whose times and bytes on [machine] replace the times of
  /// [cost]; empty: none.
  std::string preset;
  /// Preset only: samples per microbatch.
  std::uint32_t samples = 1;
  /// Preset without learned positions only: decoder tokens per sample; 0: the preset's value.
  std::uint32_t sequence_tokens = 0;
  /// Preset only: whether blocking messages of a model with images follow one with their shape.
  bool shape_messages = false;
};

struct options {
  dispatch_options dispatch;
  cost_options cost;
  study::machine machine;
  /// The samples of cost.preset; drawn with jitter.seed.
  image_counts images;
  /// The path is absolute; the file was read with the job.
  text_options texts;
  expert_options experts;
};

/// The keys of all jobs, and those of studies: further ones of [dispatch], [jitter] and [cost], and
/// [machine], [images], [texts] and [experts].
const job::schema& schema();

/// A job of schema() with every key at its default.
job::job new_job();

/// Requires a job of schema().
options& options_of(job::job& j);
const options& options_of(const job::job& j);

bool blocks_messages(const job::job& j);

}  // namespace rrfp::study

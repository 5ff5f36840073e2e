/// What a user asks for, as plain data: the sections of a job file. No behaviour, no third party.
/// load_job() (job.hpp) fills it from TOML and proves that it can run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/schedule/admission.hpp>
#include <rrfp/schedule/memory.hpp>
#include <rrfp/schedule/placement.hpp>
#include <rrfp/schedule/stage_core.hpp>

namespace rrfp::job {

/// [model] a GPT-style decoder: pre-norm, learned positions, GELU, causal attention.
struct model_options {
  std::uint32_t layers = 4;
  std::uint32_t hidden = 128;
  std::uint32_t heads = 4;
  /// Width of the feed-forward part; 0: 4 * hidden.
  std::uint32_t feed_forward = 0;
  std::uint32_t vocabulary = 256;
  /// Longest sequence, in tokens.
  std::uint32_t context = 128;
  /// Probability of dropping an element after the embedding and after each residual branch.
  double dropout = 0.0;
  /// The head uses the token embedding's weights.
  bool tied_head = false;
};

/// [data] byte-level text: every regular file of `text` (folders are walked), in order of path.
struct data_options {
  std::vector<std::string> text;
  /// Sequences in a microbatch.
  std::uint32_t microbatch_size = 4;
  /// Tokens in a sequence, at most model.context.
  std::uint32_t sequence_length = 128;
};

enum class optimizer_kind : std::uint8_t { adamw, sgd };

/// [train]
struct train_options {
  std::uint64_t steps = 100;
  std::uint64_t seed = 1;
  optimizer_kind optimizer = optimizer_kind::adamw;
  double lr = 3e-4;
  /// Where the cosine decay ends.
  double lr_min = 0.0;
  /// Steps of linear warm-up from 0 to lr.
  std::uint64_t warmup_steps = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double momentum = 0.0;
  /// Largest global gradient norm; 0: no clipping.
  double clip_norm = 1.0;
};

}  // namespace rrfp::job

/// Where microbatches come from. The first virtual stage loads the inputs and the last one the
/// targets, maybe on different nodes, so both must get the same answer to the same question.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include <rrfp/schedule/ids.hpp>

namespace rrfp::compute {

/// Targets with this value count for nothing: padding of sequences shorter than their microbatch.
inline constexpr std::int64_t ignored_target = -100;

struct microbatch {
  at::Tensor inputs;        ///< token ids, int64 [B, T]
  at::Tensor targets;       ///< the token to predict at each place, or ignored_target; int64 [B, T]
  std::int64_t tokens = 0;  ///< targets that count
};

/// B and T may differ from one microbatch to the next.
class batch_source {
 public:
  batch_source() = default;
  batch_source(const batch_source&) = delete;
  batch_source& operator=(const batch_source&) = delete;
  virtual ~batch_source() = default;

  /// The same answer on every node and at any time; safe to call from several threads at once. May
  /// throw a std::exception, which reaches the caller of stage_compute::run() as a compute_error.
  virtual microbatch load(step_id step, microbatch_id mb) const = 0;
  /// Sum of `tokens` over the microbatches of the step: what the loss is averaged over.
  virtual std::int64_t step_tokens(step_id step) const = 0;
};

}  // namespace rrfp::compute

/// The interface to training data. The first virtual stage loads the inputs, the last one the
/// targets, and those between ask for sizes, possibly on different nodes. So a source must return
/// the same data for the same step and microbatch on every node.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <rrfp/base/ids.hpp>
#include <rrfp/compute/microbatch_layout.hpp>
#include <rrfp/core/placement.hpp>

namespace rrfp::compute {

/// Targets with this value do not enter the loss, for example padding.
inline constexpr std::int64_t ignored_target = -100;

/// A microbatch of text. A user's model (stage_module) may give other meanings to all members
/// except `tokens`, the weight of the loss.
///
/// Sequences of different lengths are concatenated without padding.
struct microbatch {
  /// Token ids, int64: [B, T], or [N] for concatenated sequences. An image is represented by one
  /// image token for each row that the model makes of it.
  at::Tensor inputs;
  /// The token to predict at each position, or ignored_target; shaped like inputs.
  at::Tensor targets;
  std::int64_t tokens = 0;  ///< targets that enter the loss
  /// With inputs [N]: tokens of each sequence, in order, with sum N. With [B, T]: empty.
  std::vector<std::int64_t> lengths = {};
  /// Float [channels, height, width] each, in the order of their image tokens in inputs.
  std::vector<at::Tensor> images = {};
};

/// The sizes of `mb`.
inline microbatch_layout layout_of(const microbatch& mb) {
  microbatch_layout layout;
  layout.lengths = mb.lengths;
  if (mb.inputs.dim() == 2)
    layout.lengths.assign(static_cast<std::size_t>(mb.inputs.size(0)), mb.inputs.size(1));
  for (const auto& image : mb.images) layout.images.push_back({image.size(1), image.size(2)});
  return layout;
}

/// All sizes may differ between microbatches.
class batch_source {
 public:
  batch_source() = default;
  batch_source(const batch_source&) = delete;
  batch_source& operator=(const batch_source&) = delete;
  virtual ~batch_source() = default;

  /// The numbers of microbatches of a step, if they follow from the data; empty: those of the job.
  /// Node 0 asks before it begins a step.
  virtual microbatch_counts counts(step_id) const { return {}; }
  /// Called on each stage before the first task of a step, with the numbers of microbatches. May
  /// throw.
  virtual void begin(step_id, const microbatch_counts&) const {}
  /// Must return the same data on every node and at any time. Thread-safe. May throw a
  /// std::exception, which fails the run with an error that contains its text.
  virtual microbatch load(step_id step, microbatch_id mb) const = 0;
  /// load() for chunks that need only the text; `images` may be empty.
  virtual microbatch load_text(step_id step, microbatch_id mb) const { return load(step, mb); }
  /// layout_of(load(step, mb)). Override it if the layout is known without loading: chunks in the
  /// middle of the model need only the layout.
  virtual microbatch_layout layout(step_id step, microbatch_id mb) const {
    return layout_of(load(step, mb));
  }
  /// Sum of `tokens` over the microbatches of the step, the divisor of the loss. Called only on the
  /// stage with the last chunk.
  virtual std::int64_t step_tokens(step_id step) const = 0;
};

}  // namespace rrfp::compute

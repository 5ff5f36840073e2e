/// Where microbatches come from. The first virtual stage loads the inputs and the last one the
/// targets, those between ask for sizes, maybe on different nodes: all must get the same answer to
/// the same question.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <rrfp/compute/microbatch_layout.hpp>
#include <rrfp/schedule/ids.hpp>

namespace rrfp::compute {

/// Targets with this value count for nothing: padding of sequences shorter than their microbatch.
inline constexpr std::int64_t ignored_target = -100;

/// What a microbatch of text holds. A model of one's own (stage_module) may give every member
/// another meaning, but for `tokens`, by which losses are weighed.
///
/// Sequences of different lengths lie one after another, without padding; so do images.
struct microbatch {
  /// Token ids, int64: [B, T], or [N], the sequences one after another. Where an image goes, the
  /// model's image token stands once for each of the rows that the model makes of the image.
  at::Tensor inputs;
  /// The token to predict at each place, or ignored_target; shaped like inputs.
  at::Tensor targets;
  std::int64_t tokens = 0;  ///< targets that count
  /// With inputs [N]: tokens of each sequence, in order, N together. With [B, T]: empty.
  std::vector<std::int64_t> lengths = {};
  /// Float [channels, height, width] each, in the order of their places in inputs.
  std::vector<at::Tensor> images = {};
};

/// The sizes of `mb`.
microbatch_layout layout_of(const microbatch& mb);

/// Everything may differ in size from one microbatch to the next.
class batch_source {
 public:
  batch_source() = default;
  batch_source(const batch_source&) = delete;
  batch_source& operator=(const batch_source&) = delete;
  virtual ~batch_source() = default;

  /// The same answer on every node and at any time; safe to call from several threads at once. May
  /// throw a std::exception, which reaches the caller of stage_compute::run() as a compute_error.
  virtual microbatch load(step_id step, microbatch_id mb) const = 0;
  /// load() without the images, for chunks that need the text alone; `images` may be filled where
  /// that costs nothing.
  virtual microbatch load_text(step_id step, microbatch_id mb) const { return load(step, mb); }
  /// layout_of(load(step, mb)). A source that knows it without loading says so: chunks in the
  /// middle of the model ask for nothing else.
  virtual microbatch_layout layout(step_id step, microbatch_id mb) const {
    return layout_of(load(step, mb));
  }
  /// Sum of `tokens` over the microbatches of the step: what the loss is averaged over. Asked for
  /// where the last chunk is.
  virtual std::int64_t step_tokens(step_id step) const = 0;
};

}  // namespace rrfp::compute

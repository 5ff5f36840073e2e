/// What a chunk of a model costs, from its sizes alone: for planning, for slot sizes and for
/// virtual devices that only pretend to compute. Counts what make_model_chunk() builds, in float32;
/// needs no torch.
#pragma once

#include <cstdint>
#include <vector>

#include <rrfp/compute/microbatch_layout.hpp>
#include <rrfp/job/options.hpp>
#include <rrfp/schedule/placement.hpp>

namespace rrfp::compute {

/// Layers first, first + 1, ..., first + count - 1 of those of the encoder and the decoder.
struct layer_range {
  std::uint32_t first = 0;
  std::uint32_t count = 0;

  bool operator==(const layer_range&) const = default;
};

/// Which layers chunk `vs` holds: contiguous, evenly cut, the remainder to the earlier chunks.
layer_range layers_of(std::uint32_t layers, virtual_stage_id vs, std::uint32_t virtual_stages);

/// One virtual stage on one tensor-parallel rank; work and bytes are those of one microbatch.
struct chunk_estimate {
  virtual_stage_id vs;
  layer_range layers;
  std::uint64_t parameters = 0;  ///< elements; the copy of a tied head counts with its owner
  /// Floating-point operations of the matrix products (a multiply-add is two); the causal half of
  /// attention alone is counted, and its recomputation in B.
  double forward_flops = 0;
  double backward_flops = 0;
  double weight_flops = 0;
  /// Held between F and B, the chunk's input included.
  std::uint64_t activation_bytes = 0;
  /// Held between B and W where W is split off.
  std::uint64_t pending_weight_bytes = 0;
  /// The activation that goes on to the next virtual stage, and the gradient that comes back; 0 on
  /// the last one.
  std::uint64_t boundary_bytes = 0;
};

/// The microbatch that a job expects: full sequences, with an image of vision.image_size each where
/// the model takes images.
microbatch_layout expected_layout(const job::model_options& model, const job::data_options& data);

/// Indexed by virtual stage. `shape` and `model` are valid and fit each other, and `ranks`, the
/// tensor-parallel ranks of a stage, divide what they share (fault_of() in model_rules.hpp).
/// `recompute`: activations are not kept between F and B.
std::vector<chunk_estimate> estimate(const job::model_options& model, const microbatch_layout& mb,
                                     const pipeline_shape& shape, std::uint32_t ranks = 1,
                                     bool recompute = false);

/// Bytes that a microbatch holds on a stage at most: the slot_bytes of memory slots. Sum over the
/// stage's chunks of the larger of activation_bytes and pending_weight_bytes.
std::uint64_t slot_bytes(const std::vector<chunk_estimate>& chunks, const pipeline_shape& shape,
                         stage_id stage);

}  // namespace rrfp::compute

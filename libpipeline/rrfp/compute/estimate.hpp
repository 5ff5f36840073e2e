/// Estimates the cost of a chunk from its sizes: for plans, slot sizes and emulated devices. Covers
/// the models of make_model_chunk(), in float32; needs no torch.
#pragma once

#include <cstdint>
#include <vector>

#include <rrfp/compute/microbatch_layout.hpp>
#include <rrfp/core/placement.hpp>
#include <rrfp/job/options.hpp>

namespace rrfp::compute {

/// Layers first to first + count - 1, numbered through encoder and decoder.
struct layer_range {
  std::uint32_t first = 0;
  std::uint32_t count = 0;

  bool operator==(const layer_range&) const = default;
};

/// The layers of virtual stage `vs`. `cut`: the number of layers of each virtual stage.
layer_range layers_of(const std::vector<std::uint32_t>& cut, virtual_stage_id vs);

/// One virtual stage on one tensor-parallel rank; FLOPs and bytes are per microbatch.
struct chunk_estimate {
  virtual_stage_id vs;
  layer_range layers;
  std::uint64_t parameters = 0;  ///< elements; the copy of a tied head is counted only at its owner
  /// Floating-point operations of the matrix products; a multiply-add is two. Causal attention
  /// counts half. The backward includes the recomputation of attention.
  double forward_flops = 0;
  double backward_flops = 0;
  double weight_flops = 0;
  /// Held between F and B, including the chunk's input.
  std::uint64_t activation_bytes = 0;
  /// Held between B and W if W is a task of its own.
  std::uint64_t pending_weight_bytes = 0;
  /// Size of the activation to the next virtual stage and of the gradient from it; 0 on the last
  /// one.
  std::uint64_t boundary_bytes = 0;
};

/// The typical microbatch of a job: full sequences and, if the model has an encoder, one image of
/// side vision.image_size for each.
microbatch_layout expected_layout(const job::model_options& model, const job::data_options& data);

/// Indexed by virtual stage, each with the layers that `cut` says. `model` must be valid, `cut`
/// must hold all its layers, and `ranks`, the number of tensor-parallel ranks, must divide what the
/// ranks share (fault_of() in model_rules.hpp). `recompute`: activations are not kept between F and
/// B.
std::vector<chunk_estimate> estimate(const job::model_options& model, const microbatch_layout& mb,
                                     const std::vector<std::uint32_t>& cut, std::uint32_t ranks = 1,
                                     bool recompute = false);

/// The FLOPs of all tasks of a microbatch, over the whole model: the sum of those of its sequences
/// and images, each by itself.
double training_flops(const job::model_options& model, const microbatch_layout& mb);

/// Upper bound of the bytes that a microbatch holds on a stage: the sum over the stage's chunks of
/// the larger of activation_bytes and pending_weight_bytes.
std::uint64_t slot_bytes(const std::vector<chunk_estimate>& chunks, const pipeline_shape& shape,
                         stage_id stage);

}  // namespace rrfp::compute

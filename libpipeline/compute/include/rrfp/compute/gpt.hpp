/// A GPT-style decoder, cut into chunks: token and learned position embeddings, pre-norm blocks
/// (causal attention, then Linear-GELU-Linear), a final norm, a head without bias, cross-entropy.
///
/// Weights follow from (seed, name of the parameter), so every cut of the model starts from the
/// same ones: normal with deviation 0.02, the projections into the residual stream scaled by 1 /
/// sqrt(2 * layers), biases zero (Radford et al., GPT-2, 2019).
///
/// Dropout follows the embedding and each residual branch. Attention weights are never dropped:
/// scaled_dot_product_attention draws from the global generator, and its masks would depend on the
/// order of execution.
///
/// With several tensor-parallel ranks each holds the heads, feed-forward columns and rows of the
/// vocabulary that its number gives it, as slices of the weights that one rank would have; norms,
/// positions, biases of the residual branches and all activations between layers are the same on
/// every rank.
#pragma once

#include <cstdint>
#include <memory>

#include <rrfp/compute/rank_group.hpp>
#include <rrfp/compute/stage_module.hpp>
#include <rrfp/job/options.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp::compute {

/// Chunk `vs` of `virtual_stages`. Layers are contiguous and evenly cut, the remainder going to the
/// earlier chunks. Names of parameters: "embedding.tokens.weight", "embedding.positions.weight",
/// "layers.3.attention.qkv.weight", ..., "norm.weight", "head.weight". With a tied head the last
/// chunk holds a copy of "embedding.tokens.weight" instead of "head.weight", even if it is the
/// first one too: the arithmetic is the same for every cut.
///
/// `group`: the ranks of the stage; null or of size 1: one rank. It must be the one that
/// stage_compute_config names.
///
/// Errors: fewer layers than chunks, a hidden size that the heads do not divide, a size of zero, a
/// dropout outside [0, 1), heads, a feed-forward width or a vocabulary that the ranks do not
/// divide.
result<std::unique_ptr<stage_module>> make_gpt_chunk(const job::model_options& model,
                                                     virtual_stage_id vs,
                                                     std::uint32_t virtual_stages,
                                                     std::uint64_t seed,
                                                     std::shared_ptr<rank_group> group = nullptr);

/// Whether `ranks` tensor-parallel ranks can share the model: the errors above that come from them.
status check_ranks(const job::model_options& model, std::uint32_t ranks);

}  // namespace rrfp::compute

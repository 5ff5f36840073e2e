/// Transformers by configuration, cut into chunks: GPT-2, LLaMA 3 and Qwen3 decoders, alone or with
/// a vision transformer and a projector in front, as in LLaVA. Parameters have the names of Hugging
/// Face's files.
///
/// The layers of the encoder, if any, and then of the decoder are divided into contiguous chunks,
/// in any way. Without an encoder the first chunk embeds the tokens. With an encoder the first
/// chunk embeds the patches; the chunk with the decoder's first layer embeds the tokens and
/// replaces the image tokens by the projected patches. A microbatch without images costs nothing
/// before that chunk.
///
/// Initial weights follow from (seed, parameter name), so they do not depend on how the model is
/// divided: normal with deviation 0.02, the projections into the residual stream scaled by
/// 1 / sqrt(2 * layers), biases zero, norms one (Radford et al., GPT-2, 2019).
///
/// Dropout follows the token embedding and each residual branch of the decoder. Attention weights
/// have no dropout: scaled_dot_product_attention uses the global generator, so its masks would
/// depend on the order of execution.
///
/// Sequences are concatenated without padding, [rows, hidden]; attention does not cross sequences.
///
/// With several tensor-parallel ranks each rank holds a slice of the heads, the feed-forward
/// columns and the vocabulary rows. Norms, positions, patches, biases of the residual branches and
/// all activations between layers are replicated.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/compute/estimate.hpp>
#include <rrfp/compute/rank_group.hpp>
#include <rrfp/job/options.hpp>
#include <rrfp/torch/stage_module.hpp>

namespace rrfp::compute {

/// Creates the chunk with these layers, at least one. With a tied head the last chunk holds a copy
/// of the token embedding, even if it is also the first chunk, so the arithmetic does not depend on
/// the chunks.
///
/// `group`: the tensor-parallel ranks of the stage; null or size 1: one rank. It must be the group
/// of stage_compute_config.
///
/// Every chunk uses its microbatch view (forward_input::batch). Without a view, the first and the
/// last chunk of a decoder take the sizes from inputs or targets [B, T].
///
/// Called without targets the last chunk returns logits, [rows, vocabulary / ranks].
///
/// Errors: those of fault_of() in rrfp/job/model_rules.hpp.
result<std::unique_ptr<stage_module>> make_model_chunk(const job::model_options& model,
                                                       layer_range layers, std::uint64_t seed,
                                                       std::shared_ptr<rank_group> group = nullptr);

/// The parameters of the whole model on one rank, in model order: tensors on the meta device, which
/// have sizes but no memory. Errors: as above.
result<std::vector<parameter>> parameters_of(const job::model_options& model);

}  // namespace rrfp::compute

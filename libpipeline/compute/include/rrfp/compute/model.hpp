/// Transformers by configuration, cut into chunks: GPT-2, LLaMA 3 and Qwen3 decoders, alone or with
/// a vision transformer and a projector in front, as in LLaVA. Parameters have the names that
/// Hugging Face's files give them.
///
/// The layers of the model are those of the encoder, if there is one, and then those of the
/// decoder, contiguous and evenly cut. The first chunk embeds: tokens, or patches where there is an
/// encoder; then the chunk of the decoder's first layer embeds the tokens and puts the projected
/// patches in the places of the image tokens. A microbatch without images costs nothing before
/// that.
///
/// First weights follow from (seed, name of the parameter), so every cut of the model starts from
/// the same ones: normal with deviation 0.02, the projections into the residual stream scaled by
/// 1 / sqrt(2 * layers), biases zero, norms one (Radford et al., GPT-2, 2019).
///
/// Dropout follows the token embedding and each residual branch of the decoder. Attention weights
/// are never dropped: scaled_dot_product_attention draws from the global generator, and its masks
/// would depend on the order of execution.
///
/// Sequences lie one after another, without padding, [rows, hidden]; attention stays within each.
///
/// With several tensor-parallel ranks each holds the heads, feed-forward columns and rows of the
/// vocabulary that its number gives it, as slices of the weights that one rank would have; norms,
/// positions, patches, biases of the residual branches and all activations between layers are the
/// same on every rank.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <rrfp/compute/rank_group.hpp>
#include <rrfp/compute/stage_module.hpp>
#include <rrfp/job/options.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp::compute {

/// Chunk `vs` of `virtual_stages`; the remainder of the layers goes to the earlier chunks. With a
/// tied head the last chunk holds a copy of the token embedding, even if it is the first one too:
/// the arithmetic is the same for every cut.
///
/// `group`: the ranks of the stage; null or of size 1: one rank. It must be the one that
/// stage_compute_config names.
///
/// Every chunk asks for its microbatch (forward_input::batch); without a view, the first and the
/// last chunk of a decoder take the sizes from inputs or targets [B, T].
///
/// Called without targets the last chunk returns logits, [rows, vocabulary / ranks].
///
/// Errors: those of fault_of() in rrfp/job/model_rules.hpp.
result<std::unique_ptr<stage_module>> make_model_chunk(const job::model_options& model,
                                                       virtual_stage_id vs,
                                                       std::uint32_t virtual_stages,
                                                       std::uint64_t seed,
                                                       std::shared_ptr<rank_group> group = nullptr);

/// The parameters of the whole model on one rank, in model order: tensors of the device meta, which
/// have sizes and take no memory. Errors: as above.
result<std::vector<parameter>> parameters_of(const job::model_options& model);

}  // namespace rrfp::compute

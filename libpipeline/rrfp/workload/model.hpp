/// Models as sizes: the parameters, FLOPs and bytes of their parts. No tensors.
///
/// A multimodal model consists of an optional image encoder, a projector, and a decoder of text and
/// image tokens. Layer norms and biases are ignored: they are below 0.1 % of every count here.
///
/// FLOPs count a multiplication and an addition as two. A matrix of P parameters costs 2 P per
/// token in each of F, B (input gradient) and W (weight gradient). Attention over a sequence of s
/// tokens costs 4 s^2 heads head_dim in F (scores and values; half of that if causal), twice as
/// much in B, and nothing in W (Narayanan et al. 2021, arXiv 2104.04473, appendix).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rrfp::workload {

/// The size of a weight or an activation.
inline constexpr double fp16_bytes = 2;

/// One transformer layer. The heads share `kv_heads` key and value heads. The feed-forward part has
/// two matrices, or three if gated (SwiGLU). In a mixture of experts it is one of `experts`, and a
/// router sends each token to `experts_per_token` of them.
struct block {
  std::uint32_t hidden = 0;
  std::uint32_t heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t feed_forward = 0;
  bool gated = false;
  bool causal = false;
  std::uint32_t experts = 0;  ///< 0: a single feed-forward part, for all tokens
  std::uint32_t experts_per_token = 0;
};

struct decoder {
  block layer;
  std::uint32_t layers = 0;
  std::uint32_t vocabulary = 0;
  /// The head shares the weights of the token embedding. A pipeline holds a copy on both ends.
  bool tied_head = false;
  /// Number of learned positions; 0: rotary positions, which have no parameters.
  std::uint32_t positions = 0;
};

struct encoder {
  block layer;
  std::uint32_t layers = 0;
  /// Patches per image; the encoder's attention stays within one image.
  std::uint32_t patches = 0;
  /// Number of patches that form one token of the decoder.
  std::uint32_t patches_per_token = 1;

  std::uint32_t tokens_per_image() const { return patches / patches_per_token; }
};

struct model {
  std::string name;
  std::optional<encoder> images;
  decoder text;
  /// Decoder tokens per sample, including those of its images, if samples are packed or padded to
  /// one length, as Megatron's fixed message shapes require.
  std::uint32_t sequence_tokens = 0;
};

/// The input of one pass: samples, the total number of their images, and of their decoder tokens.
struct load {
  std::uint32_t samples = 1;
  std::uint32_t images = 0;
  double tokens = 0;  ///< 0: samples of model::sequence_tokens
  /// Sum of the squares of the tokens of each sample.
  double token_squares = 0;
  /// Shares of the tokens that each expert gets, by layer * experts + expert; empty: even.
  std::vector<double> expert_shares = {};
};

// ---- parameters

std::uint64_t parameters(const block& b);
/// The matrices of one feed-forward part.
std::uint64_t feed_forward_parameters(const block& b);
/// Those that a token passes through: of a mixture, `experts_per_token` experts.
std::uint64_t active_parameters(const block& b);
/// Layers, embedding, positions, and the head unless it is tied.
std::uint64_t parameters(const decoder& d);
std::uint64_t parameters(const encoder& e);
/// From the patches of one token to the decoder's width, followed by a second matrix (LLaVA has
/// two).
std::uint64_t projector_parameters(const model& m);

// ---- FLOPs of a forward

/// For `tokens` tokens through the matrices.
double matrix_flops(std::uint64_t parameters, double tokens);
/// For sequences with this sum of squared lengths.
double attention_flops_of_squares(const block& b, double length_squares);

// ---- bytes, in FP16

/// Bytes that one token leaves behind for B and W on one of `tp` ranks, without those of experts.
/// Inputs and outputs of both norms are on every rank; queries, keys, values, the attention output
/// and the inner activations of the feed-forward part are divided by tp. Attention scores are
/// recomputed (FlashAttention); no dropout masks, no recomputation of layers. Korthikanti et al.
/// 2022, arXiv 2205.05198, without those terms: 8 h + 24 h / tp for feed-forward parts of width 4
/// h.
double activation_bytes_per_token(const block& b, std::uint32_t tp);
/// The same for one token in one expert: its input and the inner activations.
double activation_bytes_per_routed_token(const block& b);

}  // namespace rrfp::workload

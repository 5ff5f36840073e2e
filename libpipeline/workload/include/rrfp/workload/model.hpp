/// Models as sizes: how many parameters, FLOPs and bytes their parts have. No tensors.
///
/// A multimodal model is an encoder of images (optional), a projector, and a decoder of text and
/// image tokens. Layer norms and biases are left out: they are below 0.1 % of everything counted
/// here.
///
/// FLOPs count a multiplication and an addition as two. A matrix of P parameters costs 2 P a token
/// in F, in B (input gradient) and in W (weight gradient) each; attention over a sequence of s
/// tokens costs 4 s^2 heads head_dim in F (scores and values), half of it when causal, twice that
/// in B, and nothing in W (Narayanan et al. 2021, arXiv 2104.04473, appendix).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace rrfp::workload {

/// One transformer layer. Attention with `kv_heads` shared by the heads; a feed-forward part of two
/// matrices, or of three when gated (SwiGLU).
struct block {
  std::uint32_t hidden = 0;
  std::uint32_t heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t feed_forward = 0;
  bool gated = false;
  bool causal = false;
};

struct decoder {
  block layer;
  std::uint32_t layers = 0;
  std::uint32_t vocabulary = 0;
  /// The head uses the token embedding's weights. Pipelines hold them on both ends all the same.
  bool tied_head = false;
  /// Learned positions; 0: rotary, no parameters.
  std::uint32_t positions = 0;
};

struct encoder {
  block layer;
  std::uint32_t layers = 0;
  /// Patches of an image; the encoder's attention stays within one image.
  std::uint32_t patches = 0;
  /// Patches that become one token of the decoder.
  std::uint32_t patches_per_token = 1;

  std::uint32_t tokens_per_image() const { return patches / patches_per_token; }
};

struct model {
  std::string name;
  std::optional<encoder> images;
  decoder text;
  /// Tokens of one sample in the decoder, those of its images among them: samples are packed or
  /// padded to one length, as Megatron's fixed message shapes ask for.
  std::uint32_t sequence_tokens = 0;
};

/// What flows through one pass: samples, and the images of all of them together.
struct load {
  std::uint32_t samples = 1;
  std::uint32_t images = 0;
};

// ---- parameters

std::uint64_t parameters(const block& b);
/// Layers, embedding, positions, and a head of its own unless tied.
std::uint64_t parameters(const decoder& d);
std::uint64_t parameters(const encoder& e);
/// From the patches of one token to the decoder's width, and once more (LLaVA's two matrices).
std::uint64_t projector_parameters(const model& m);
std::uint64_t parameters(const model& m);

// ---- FLOPs of a forward

/// Of `tokens` tokens through the matrices.
double matrix_flops(std::uint64_t parameters, double tokens);
/// Of one sequence of `length` tokens.
double attention_flops(const block& b, double length);

// ---- bytes, in FP16

/// That one token leaves behind for B and W on one of `tp` ranks: both norms' inputs and outputs on
/// every rank; queries, keys, values, attention's output and what the feed-forward part computes
/// inside, divided by tp. Attention scores are computed again (FlashAttention); no dropout masks,
/// no recomputation of layers. Korthikanti et al. 2022, arXiv 2205.05198, less those terms: for
/// 4 h wide feed-forward parts 8 h + 24 h / tp.
double activation_bytes_per_token(const block& b, std::uint32_t tp);

}  // namespace rrfp::workload

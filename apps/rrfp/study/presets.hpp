/// Models by name: the paper's workloads (a decoder, or a decoder with an encoder) and two mixtures
/// of experts. arXiv 2605.18750 gives only the names, so the sizes are those of the public models
/// with these names.
///
/// | decoder | |
/// |---|---|
/// | gpt3-large | GPT-3 Large, 760 M (arXiv 2005.14165, table 2.1) |
/// | qwen3-1.7b, qwen3-4b, qwen3-32b | Qwen3 |
/// | llama3-8b, llama3-70b | Llama 3 |
/// | qwen3-30b-a3b | Qwen3, 128 experts of which a token passes 8 |
/// | mixtral-8x7b | Mixtral, 8 experts of which a token passes 2 (arXiv 2401.04088) |
///
/// | encoder | |
/// |---|---|
/// | vit-l | ViT-L/14, 302 M (arXiv 2010.11929) |
/// | vit-h | ViT-H/14, 629 M (arXiv 2010.11929) |
/// | vit-g | ViT-g/14, 1.0 B (arXiv 2106.04560) |
/// | vit-big | ViT-bigG/14, 1.84 B (OpenCLIP) |
/// | vit-5b | 5.0 B: no public model has the name; 48 layers of 2944 |
/// | internvit | InternViT-6B, 5.5 B (arXiv 2312.14238, V2.5: 45 layers) |
/// | vit-22b | ViT-22B (arXiv 2302.05442) |
///
/// Qwen3: config.json of Qwen/Qwen3-*; Llama 3: of meta-llama/Meta-Llama-3-*; Mixtral: of
/// mistralai/Mixtral-8x7B-v0.1.
///
/// Assumptions for all: GPT-3 at its own context of 2048 tokens; mixtures of experts at 4096
/// tokens; multimodal samples of 1024 tokens; images of 224 x 224 pixels in patches of 14 x 14, the
/// size at which ViT-H, bigG and ViT-22B were trained, which gives 256 patches, each one token of
/// the decoder (LLaVA); encoder and decoder are both trained.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include <rrfp/workload/model.hpp>

namespace rrfp::study {

using workload::model;

std::span<const std::string_view> preset_names();

/// The model with this name; nothing for any other name.
std::optional<model> preset(std::string_view name);

}  // namespace rrfp::study

/// The paper's six workloads by name (listed in PAPER.md). arXiv 2605.18750 gives only the names,
/// so the sizes are those of the public models with these names.
///
/// | preset | decoder | encoder |
/// |---|---|---|
/// | gpt3-large | GPT-3 Large, 760 M (arXiv 2005.14165, table 2.1) | none |
/// | qwen3-1.7b-vit-h | Qwen3-1.7B | ViT-H/14, 632 M (arXiv 2010.11929) |
/// | qwen3-4b-vit-big | Qwen3-4B | ViT-bigG/14, 1.84 B (OpenCLIP) |
/// | llama3-8b-vit-5b | Llama 3 8B | 5.0 B: no public model has the name; 48 layers of 2944 |
/// | qwen3-32b-internvit | Qwen3-32B | InternViT-6B, 5.5 B (arXiv 2312.14238, V2.5: 45 layers) |
/// | llama3-70b-vit-22b | Llama 3 70B | ViT-22B (arXiv 2302.05442) |
///
/// Qwen3: config.json of Qwen/Qwen3-*; Llama 3: of meta-llama/Meta-Llama-3-*.
///
/// Assumptions for all: GPT-3 at its own context of 2048 tokens; multimodal samples of 1024 tokens;
/// images of 224 x 224 pixels in patches of 14 x 14, the size at which ViT-H, bigG and ViT-22B were
/// trained, which gives 256 patches, each one token of the decoder (LLaVA); encoder and decoder are
/// both trained.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include <rrfp/workload/model.hpp>

namespace rrfp::workload {

std::span<const std::string_view> preset_names();

/// The model with this name; nothing for any other name.
std::optional<model> preset(std::string_view name);

}  // namespace rrfp::workload

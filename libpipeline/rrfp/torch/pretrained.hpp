/// Loads weights from safetensors files with the names and shapes of Hugging Face into the
/// parameters of a chunk.
#pragma once

#include <rrfp/base/result.hpp>
#include <rrfp/job/options.hpp>
#include <rrfp/safetensors/collection.hpp>
#include <rrfp/torch/stage_module.hpp>

namespace rrfp::compute {

/// Whether load_pretrained() would find every parameter of the model, on any number of stages and
/// ranks; reads no data. Errors: as load_pretrained().
status check_pretrained(const job::model_options& model, const safetensors::collection& files);

/// Copies to every parameter of the chunk its tensor, or this rank's part of it; reads nothing
/// else. A missing name is also tried without its first component ("wte.weight"), as in files of a
/// model without its head. F16, BF16, F32 and F64 are converted to float32. Tensors that the chunk
/// does not have are ignored. Error: a tensor is missing, or has another shape or an unsupported
/// dtype; names file, tensor, the expected and the actual value. The chunk is then partly loaded.
status load_pretrained(stage_module& chunk, const safetensors::collection& files);

}  // namespace rrfp::compute

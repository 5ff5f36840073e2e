/// Weights of safetensors files, as Hugging Face names and shapes them, into the parameters of a
/// chunk.
#pragma once

#include <rrfp/compute/stage_module.hpp>
#include <rrfp/job/options.hpp>
#include <rrfp/safetensors/collection.hpp>
#include <rrfp/schedule/result.hpp>

namespace rrfp::compute {

/// Whether load_pretrained() will find every parameter of the model, on any number of stages and
/// ranks; reads no data. Errors: as there.
status check_pretrained(const job::model_options& model, const safetensors::collection& files);

/// Copies into every parameter of the chunk its tensor, or this rank's part of it: no more of the
/// files is read. A name that the files lack is tried without its first word, as files of a model
/// without its head have it ("wte.weight"). Numbers of 16, 32 and 64 bits become float32; tensors
/// that the chunk does not have are ignored. Error: a tensor is missing, or has another shape or
/// another kind of numbers; names files, tensor, what was expected and what came. The chunk is then
/// partly filled.
status load_pretrained(stage_module& chunk, const safetensors::collection& files);

}  // namespace rrfp::compute

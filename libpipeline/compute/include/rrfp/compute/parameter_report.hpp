/// What a rank of a stage tells about its parameters at the end of a step, and how the job puts the
/// reports of all ranks of all stages together. The order of summation is that of the model, and of
/// the ranks within a parameter, never that of the stages, so any cut of the model into stages
/// gives the same bits.
///
/// A parameter that all ranks hold is reported by rank 0 alone, a part of one by the rank that
/// holds it: the reports of all ranks together name everything exactly once.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include <rrfp/schedule/result.hpp>

namespace rrfp::compute {

/// The place of a parameter in the model; sorts the same way for every contiguous cut.
struct parameter_position {
  std::uint32_t virtual_stage = 0;
  std::uint32_t index = 0;  ///< within the chunk
  std::uint32_t rank = 0;   ///< that holds this part; 0 if it is whole

  auto operator<=>(const parameter_position&) const = default;
};

struct parameter_norm {
  parameter_position at;
  double squared = 0;  ///< sum of the squares of the gradient's elements
};

struct parameter_hash {
  parameter_position at;
  std::uint64_t xxh64 = 0;  ///< of the value's bytes
};

struct gradient_norm {
  double norm = 0;   ///< L2 norm over all parameters
  double scale = 1;  ///< what to multiply the gradients with
};

/// `clip` 0: no clipping. Above it gradients are scaled by clip / (norm + 1e-6), as
/// torch.nn.utils.clip_grad_norm_ does. Error: the norm is NaN or infinite.
result<gradient_norm> clip_gradients(std::vector<parameter_norm> of_all_ranks, double clip);

/// One number for the weights of the whole model, the same for any cut of it into stages (but not
/// for another number of ranks: their parts are other bytes).
std::uint64_t hash_of_model(std::vector<parameter_hash> of_all_ranks);

}  // namespace rrfp::compute

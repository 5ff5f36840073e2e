/// Which part of a parameter a rank holds; and the norms and hashes that each rank reports at the
/// end of a step, and their reduction over all ranks of all stages.
///
/// The description of a part does not depend on the number of ranks, so a checkpoint can be read
/// with another number of ranks. The order of summation is that of the parameters in the model,
/// then of the ranks, so the bits do not depend on how the model is divided into stages. Rank 0
/// reports a replicated parameter; each rank reports its part of a sharded one. So the reports of
/// all ranks cover every element exactly once.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/base/tensor_buffer.hpp>

namespace rrfp::compute {

using rrfp::shard;

/// The shard of rank `rank`. `ranks` must divide the size of a block.
shard even_shard(std::vector<std::int64_t> whole, std::int64_t dimension, std::int64_t blocks,
                 std::uint32_t rank, std::uint32_t ranks);

/// The position of a parameter in the model; the order is the same for every contiguous division.
struct parameter_position {
  std::uint32_t virtual_stage = 0;
  std::uint32_t index = 0;  ///< within the chunk
  std::uint32_t rank = 0;   ///< the rank that holds this part; 0 if replicated

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
  double scale = 1;  ///< factor for the gradients
};

/// `clip` 0: no clipping. A norm above `clip` gives the scale clip / (norm + 1e-6), as in
/// torch.nn.utils.clip_grad_norm_. Error: the norm is NaN or infinite.
result<gradient_norm> clip_gradients(std::vector<parameter_norm> of_all_ranks, double clip);

/// One hash of all weights of the model. The hash does not depend on the division into stages. It
/// does depend on the number of ranks, because that changes the bytes of each rank's part.
std::uint64_t hash_of_model(std::vector<parameter_hash> of_all_ranks);

}  // namespace rrfp::compute

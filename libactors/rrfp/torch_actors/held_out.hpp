/// Evaluation steps that read held-out data.
#pragma once

#include <memory>

#include <rrfp/torch/batch_source.hpp>

namespace rrfp::actors {

/// `training` for training steps. Evaluation step n is batch n % `batches` of `held_out`, so that
/// each evaluation of a run reads the same ones.
std::shared_ptr<const compute::batch_source> with_held_out(
    std::shared_ptr<const compute::batch_source> training,
    std::shared_ptr<const compute::batch_source> held_out, std::uint32_t batches);

}  // namespace rrfp::actors

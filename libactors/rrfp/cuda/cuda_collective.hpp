/// NCCL collectives in libtorch's streams.
#pragma once

#include <rrfp/accelerator/platform.hpp>

namespace rrfp::cuda {

/// Calls use the current stream of the calling thread, because the backward of a launch may run on
/// one of libtorch's own threads.
std::shared_ptr<tp_coord::collective> make_cuda_collective(
    std::shared_ptr<tp_coord::collective> control, std::shared_ptr<accelerator::lane> rank_lane,
    const tp_coord::collective_options& options);

}  // namespace rrfp::cuda

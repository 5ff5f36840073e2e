/// NCCL in the streams of libtorch.
#pragma once

#include <rrfp/accelerator/platform.hpp>

namespace rrfp::cuda {

/// Calls go into the current stream of the calling thread, for the backward of a launch may run in
/// a thread of libtorch's own.
std::shared_ptr<tp_coord::collective> make_cuda_collective(
    std::shared_ptr<tp_coord::collective> control, std::shared_ptr<accelerator::lane> where,
    const accelerator::collective_options& options);

}  // namespace rrfp::cuda

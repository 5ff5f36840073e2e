/// Every call of CUDA is checked by itself: an error names the call and the device.
#pragma once

#include <cuda_runtime_api.h>

#include <rrfp/schedule/result.hpp>

namespace rrfp::cuda {

/// "cudaEventRecord on device 0: cudaErrorInvalidValue, invalid argument".
status checked(const char* call, int device, cudaError_t said);

}  // namespace rrfp::cuda

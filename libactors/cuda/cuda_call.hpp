/// Every call of CUDA is checked by itself: an error names the call and the device.
#pragma once

#include <exception>

#include <cuda_runtime_api.h>

#include <rrfp/schedule/result.hpp>

namespace rrfp::cuda {

/// "cudaEventRecord on device 0: cudaErrorInvalidValue, invalid argument".
status checked(const char* call, int device, cudaError_t said);

/// The first line of what libtorch says, without its stack.
error failure_of(const std::exception& e);

}  // namespace rrfp::cuda

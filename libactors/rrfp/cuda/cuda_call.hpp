/// Every CUDA call is checked individually: an error names the call and the device.
#pragma once

#include <exception>

#include <cuda_runtime_api.h>

#include <rrfp/base/result.hpp>

namespace rrfp::cuda {

/// Error: "cudaEventRecord on device 0: cudaErrorInvalidValue, invalid argument".
status checked(const char* call, int device, cudaError_t code);

/// The first line of libtorch's message, without its stack trace.
error failure_of(const std::exception& e);

}  // namespace rrfp::cuda

/// Every CUDA call is checked individually: an error names the call and the device.
#pragma once

#include <exception>
#include <string>

#include <cuda_runtime_api.h>

#include <rrfp/base/result.hpp>
#include <rrfp/compute/compute_error.hpp>

namespace rrfp::cuda {

/// Error: "cudaEventRecord on device 0: cudaErrorInvalidValue, invalid argument".
inline status checked(const char* call, int device, cudaError_t code) {
  if (code == cudaSuccess) return success();
  // Clears a non-sticky error; otherwise the next unrelated caller that checks would find it.
  static_cast<void>(cudaGetLastError());
  return error{std::string{call} + " on device " + std::to_string(device) + ": " +
               cudaGetErrorName(code) + ", " + cudaGetErrorString(code)};
}

inline error failure_of(const std::exception& e) { return error{compute::first_line_of(e)}; }

}  // namespace rrfp::cuda

#include "cuda_call.hpp"

#include <string>

namespace rrfp::cuda {

status checked(const char* call, int device, cudaError_t said) {
  if (said == cudaSuccess) return success();
  // Errors that are not for ever would else be found by the next caller that asks, who is not to
  // blame.
  static_cast<void>(cudaGetLastError());
  return error{std::string{call} + " on device " + std::to_string(device) + ": " +
               cudaGetErrorName(said) + ", " + cudaGetErrorString(said)};
}

}  // namespace rrfp::cuda

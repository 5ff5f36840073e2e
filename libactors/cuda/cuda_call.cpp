#include "cuda_call.hpp"

#include <string>

#include <c10/util/Exception.h>

namespace rrfp::cuda {

status checked(const char* call, int device, cudaError_t said) {
  if (said == cudaSuccess) return success();
  // Errors that are not for ever would else be found by the next caller that asks, who is not to
  // blame.
  static_cast<void>(cudaGetLastError());
  return error{std::string{call} + " on device " + std::to_string(device) + ": " +
               cudaGetErrorName(said) + ", " + cudaGetErrorString(said)};
}

error failure_of(const std::exception& e) {
  const auto* of_libtorch = dynamic_cast<const c10::Error*>(&e);
  const std::string text = of_libtorch ? of_libtorch->what_without_backtrace() : e.what();
  return error{text.substr(0, text.find('\n'))};
}

}  // namespace rrfp::cuda

#include "cuda_call.hpp"

#include <string>

#include <c10/util/Exception.h>

namespace rrfp::cuda {

status checked(const char* call, int device, cudaError_t code) {
  if (code == cudaSuccess) return success();
  // Clears a non-sticky error; otherwise the next unrelated caller that checks would find it.
  static_cast<void>(cudaGetLastError());
  return error{std::string{call} + " on device " + std::to_string(device) + ": " +
               cudaGetErrorName(code) + ", " + cudaGetErrorString(code)};
}

error failure_of(const std::exception& e) {
  const auto* of_libtorch = dynamic_cast<const c10::Error*>(&e);
  const std::string text = of_libtorch ? of_libtorch->what_without_backtrace() : e.what();
  return error{text.substr(0, text.find('\n'))};
}

}  // namespace rrfp::cuda

/// Finds and loads the CUDA plugin.
#pragma once

#include <memory>

#include <rrfp/accelerator/platform.hpp>

namespace rrfp::accelerator {

/// The file to look for: beside the program or the Python module, in the parent folder, or in
/// ../lib.
inline constexpr const char* cuda_library = "librrfp_cuda.so";
/// The environment variable that names the file instead.
inline constexpr const char* cuda_library_variable = "RRFP_CUDA_LIBRARY";

/// The CUDA devices of this machine. There is one platform per process; the first call fixes
/// `deterministic`. Error: something is missing (the library, a driver, a device), or an
/// environment variable conflicts with `deterministic`. Not thread-safe; call it before other
/// threads start, because it may set environment variables.
result<std::shared_ptr<platform>> load_cuda(bool deterministic);

}  // namespace rrfp::accelerator

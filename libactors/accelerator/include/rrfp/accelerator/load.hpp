/// Finds and loads the library behind the door.
#pragma once

#include <memory>

#include <rrfp/accelerator/platform.hpp>

namespace rrfp::accelerator {

/// The file that is looked for: beside the program, in the folder above, in ../lib.
inline constexpr const char* cuda_library = "librrfp_cuda.so";

/// The CUDA devices of this machine; one platform a process, the first call says how. Error: what
/// is missing (the library, a driver, a device), or a variable of the environment that forbids
/// `deterministic`. Not thread-safe, and before other threads start: it may set variables.
result<std::shared_ptr<platform>> load_cuda(bool deterministic);

}  // namespace rrfp::accelerator

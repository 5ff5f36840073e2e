/// Checks the shared memory that UCX uses for messages within a machine.
#pragma once

#include <cstdint>
#include <string>

#include <rrfp/base/result.hpp>

namespace rrfp::actors::ucx {

/// Whether the folder of that memory (/dev/shm, or UCX_POSIX_DIR) has room for `processes` nodes on
/// this machine. Skipped if `tls`, or UCX_TLS in its place, excludes shared memory. UCX itself
/// would report only "no resources", or lose a node. Error: the size found, the size needed, what
/// to set.
status check_shared_memory(const std::string& tls, std::uint32_t processes);

}  // namespace rrfp::actors::ucx

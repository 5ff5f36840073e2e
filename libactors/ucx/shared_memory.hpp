/// The shared memory that UCX takes for messages within a machine.
#pragma once

#include <cstdint>
#include <string>

#include <rrfp/schedule/result.hpp>

namespace rrfp::actors::ucx {

/// Whether the folder where UCX keeps it (/dev/shm, or UCX_POSIX_DIR) has room for `processes`
/// nodes on this machine, if `tls`, or UCX_TLS in its place, lets UCX take it. UCX itself says no
/// more than that it has no resources, or loses a node. Error: what there is, what is needed, what
/// to set.
status check_shared_memory(const std::string& tls, std::uint32_t processes);

}  // namespace rrfp::actors::ucx

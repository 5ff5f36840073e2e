/// The TCPStore of torchrun's agent.
#pragma once

#include <chrono>
#include <memory>

#include <rrfp/actors/framework.hpp>

namespace rrfp::actors {

/// Connects to the store of torchrun, as framework::connect_store().
result<std::unique_ptr<agent_store>> connect_tcp_store(const launch_place& place,
                                                       std::chrono::milliseconds limit);

}  // namespace rrfp::actors

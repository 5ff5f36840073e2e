/// The delays, losses and duplicates of messages that a job injects.
#pragma once

#include <functional>
#include <memory>

#include <rrfp/actors/session.hpp>

namespace rrfp::actors {

/// `on_resent`: called for each message that was lost and is sent again.
std::unique_ptr<transport> with_delays(const injected_delays& delays, const pipeline_shape& shape,
                                       std::unique_ptr<transport> wire,
                                       std::function<void()> on_resent);

}  // namespace rrfp::actors

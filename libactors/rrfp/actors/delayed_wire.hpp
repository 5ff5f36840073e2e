/// The delays of messages that a job injects.
#pragma once

#include <memory>

#include <rrfp/actors/session.hpp>

namespace rrfp::actors {

std::unique_ptr<transport> with_delays(const injected_delays& delays, const pipeline_shape& shape,
                                       std::unique_ptr<transport> wire);

}  // namespace rrfp::actors

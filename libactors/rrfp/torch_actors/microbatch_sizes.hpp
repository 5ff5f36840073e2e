/// The order in which a step admits its microbatches: it follows from their sizes, which are known
/// without loading them.
#pragma once

#include <memory>

#include <rrfp/job/job.hpp>
#include <rrfp/torch/batch_source.hpp>

namespace rrfp::actors {

/// Renumbers the microbatches of each replica and step in the order of dispatch.admission, by the
/// FLOPs of their tasks. The same on every node.
std::shared_ptr<const compute::batch_source> admitted(
    std::shared_ptr<const compute::batch_source> loaded, const job::job& j,
    const pipeline_shape& shape);

}  // namespace rrfp::actors

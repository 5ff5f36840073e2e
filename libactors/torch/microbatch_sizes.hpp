/// What follows from the sizes of a job's microbatches, which are known without loading them: the
/// order in which a step admits them, and the relative times of their tasks.
#pragma once

#include <memory>

#include <rrfp/job/job.hpp>
#include <rrfp/simulate/simulator.hpp>
#include <rrfp/torch/batch_source.hpp>

namespace rrfp::actors {

/// Renumbers the microbatches of each replica and step in the order of dispatch.admission, by the
/// FLOPs of their tasks. The same on every node.
std::shared_ptr<const compute::batch_source> admitted(
    std::shared_ptr<const compute::batch_source> loaded, const job::job& j,
    const pipeline_shape& shape);

/// Times in proportion to the FLOPs of the tasks of replica 0; messages take no time. Thread-safe.
std::shared_ptr<const simulate::cost_model> times_by_size(
    std::shared_ptr<const compute::batch_source> data, const job::job& j,
    const pipeline_shape& shape);

}  // namespace rrfp::actors

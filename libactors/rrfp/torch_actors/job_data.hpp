/// The batches of a job: held-out data for evaluations, and the order in which a training step
/// admits its microbatches, which follows from their sizes. These are known without loading them.
#pragma once

#include <memory>

#include <rrfp/job/job.hpp>
#include <rrfp/torch/batch_source.hpp>

namespace rrfp::actors {

/// `training`, with the microbatches of each replica and step renumbered in the order of
/// dispatch.admission, by the FLOPs of their tasks; the same on every node. Evaluation step n is
/// batch n % eval.batches of `held_out`, so that each evaluation of a run reads the same ones;
/// null: the job evaluates nothing.
std::shared_ptr<const compute::batch_source> data_of_job(
    std::shared_ptr<const compute::batch_source> training,
    std::shared_ptr<const compute::batch_source> held_out, const job::job& j,
    const pipeline_shape& shape);

}  // namespace rrfp::actors

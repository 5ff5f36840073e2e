/// The model of cost.preset on the machine of a job.
#pragma once

#include <memory>

#include <rrfp/job/job.hpp>
#include <rrfp/study/pipeline_cost.hpp>

namespace rrfp::study {

/// Null without a preset. Error: more stages than the model has parts. The preset must exist.
result<std::shared_ptr<const pipeline_cost>> workload_of(const job::job& j);

}  // namespace rrfp::study

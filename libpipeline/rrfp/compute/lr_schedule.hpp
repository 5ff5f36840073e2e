/// The learning rate as a function of the step.
#pragma once

#include <rrfp/base/ids.hpp>
#include <rrfp/job/options.hpp>

namespace rrfp::compute {

/// Linear warm-up over train.warmup_steps (the first step has lr / warmup_steps, the last of them
/// lr), then half a cosine from lr down to lr_min, reached at train.steps.
double lr_of(const job::train_options& train, step_id step);

}  // namespace rrfp::compute

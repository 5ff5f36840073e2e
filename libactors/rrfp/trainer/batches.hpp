/// The batches that a program passes to its pipeline, as microbatches.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <rrfp/pipeline.hpp>

namespace rrfp {

/// Cuts a batch into `count` microbatches, in the order of its rows. `count_of` gives the count of
/// a microbatch's targets.
result<std::vector<compute::microbatch>> cut(
    const batch& rows, std::int64_t count,
    const std::function<std::int64_t(const at::Tensor&)>& count_of);

/// What the process of a stage must pass.
struct needed_parts {
  bool inputs = true;
  bool targets = true;
};

/// Error: microbatches that would end the training.
status check_microbatches(const std::vector<compute::microbatch>& all, needed_parts needed);

}  // namespace rrfp

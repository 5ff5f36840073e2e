/// The reference: an ordinary libtorch training loop for the same model. One process runs the
/// microbatches in order: loss.backward(), clipping, optimizer.step(). No stages, tasks or stash.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <rrfp/job/options.hpp>
#include <rrfp/torch/batch_source.hpp>

namespace rrfp::compute::test {

struct training_result {
  std::vector<double> losses;  ///< mean of each microbatch, step after step
  std::vector<double> norms;   ///< of each step
  std::map<std::string, at::Tensor> weights;
};

training_result train_plainly(const job::model_options& model, const job::train_options& train,
                              std::uint32_t microbatches, const batch_source& data,
                              std::uint64_t steps);

}  // namespace rrfp::compute::test

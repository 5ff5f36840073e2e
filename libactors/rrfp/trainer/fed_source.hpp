/// The microbatches that a program passes to its pipeline for each step, and the outputs that it
/// gets back.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include <rrfp/torch/batch_source.hpp>

namespace rrfp {

/// Thread-safe.
class fed_source final : public compute::batch_source {
 public:
  /// `keeps_divisor`: the losses of the next training step are divided by the same count.
  void feed(step_id step, std::vector<compute::microbatch> all, bool wants_outputs,
            bool keeps_divisor);
  /// Ends the step: releases its data and returns its outputs.
  std::vector<at::Tensor> finish_step(step_id step);
  /// Before a run begins.
  void clear();

  void begin(step_id step, const microbatch_counts& microbatches) const override;
  compute::microbatch load(step_id step, microbatch_id mb) const override;
  std::int64_t step_tokens(step_id step) const override;

  bool wants_outputs(step_id step) const;
  void keep_output(step_id step, microbatch_id mb, at::Tensor output);

 private:
  struct fed {
    std::vector<compute::microbatch> microbatches;
    bool wants_outputs = false;
    std::int64_t divisor = 0;  ///< of its losses
    std::map<microbatch_id, at::Tensor> outputs;
  };

  mutable std::mutex mutex_;
  std::map<step_id, fed> steps_;
  std::int64_t divisor_ = 0;  ///< of the next training step; 0: its own
};

}  // namespace rrfp

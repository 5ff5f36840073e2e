/// The microbatches that a program passes to its pipeline for each step, and the outputs that it
/// gets back.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <vector>

#include <rrfp/torch/batch_source.hpp>

namespace rrfp {

/// Thread-safe.
class fed_source final : public compute::batch_source {
 public:
  /// `limit`: how long a task waits for the data of a step that another process may have begun.
  explicit fed_source(std::chrono::milliseconds limit) : limit_(limit) {}

  /// `keeps_divisor`: the losses of the next training step are divided by the same count.
  void feed(step_id step, std::vector<compute::microbatch> all, bool wants_outputs,
            bool keeps_divisor);
  /// Ends the step: releases its data and returns its outputs.
  std::vector<at::Tensor> finish_step(step_id step);
  /// Begins a run, after one that was closed or none.
  void open();
  /// Lets all waiting for data fail.
  void close();

  /// Stages without data wait as well: a program that still prepares its batch may draw from
  /// libtorch's generator, which forwards would disturb.
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

  /// `lock` must be locked. Throws if the data does not arrive within the limit.
  const fed& wait_for(std::unique_lock<std::mutex>& lock, step_id step) const;

  const std::chrono::milliseconds limit_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool closed_ = false;
  std::map<step_id, fed> steps_;
  std::int64_t divisor_ = 0;  ///< of the next training step; 0: its own
};

}  // namespace rrfp

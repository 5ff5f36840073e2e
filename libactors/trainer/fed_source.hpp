/// The microbatches that a training hands to its pipeline, step by step, and the outputs that come
/// back.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <vector>

#include <rrfp/compute/batch_source.hpp>

namespace rrfp {

/// Thread-safe.
class fed_source final : public compute::batch_source {
 public:
  /// `limit`: how long a task waits for its step's data, which another process may have begun.
  explicit fed_source(std::chrono::milliseconds limit) : limit_(limit) {}

  void feed(step_id step, std::vector<compute::microbatch> all, bool wants_outputs);
  /// The step is over: its data goes, its outputs are the caller's.
  std::vector<at::Tensor> take_back(step_id step);
  /// Nobody waits for data any more.
  void close();

  compute::microbatch load(step_id step, microbatch_id mb) const override;
  std::int64_t step_tokens(step_id step) const override;

  bool wants_outputs(step_id step) const;
  void keep_output(step_id step, microbatch_id mb, at::Tensor output);

 private:
  struct fed {
    std::vector<compute::microbatch> microbatches;
    bool wants_outputs = false;
    std::map<microbatch_id, at::Tensor> outputs;
  };

  /// Holds the lock that it is given. Throws if nothing comes.
  const fed& wait_for(std::unique_lock<std::mutex>& lock, step_id step) const;

  const std::chrono::milliseconds limit_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool closed_ = false;
  std::map<step_id, fed> steps_;
};

}  // namespace rrfp

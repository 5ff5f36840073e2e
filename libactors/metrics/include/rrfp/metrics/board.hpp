/// Where whoever serves numbers finds those of the run that is under way. Outlives the runs; a run
/// puts its counters up when it starts, and they stay up until the next one does so.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include <rrfp/metrics/run_counters.hpp>

namespace rrfp::metrics {

/// Thread-safe.
class board {
 public:
  void show(std::shared_ptr<const run_counters> run) {
    const std::lock_guard lock{mutex_};
    run_ = std::move(run);
  }
  /// Null before the first run.
  std::shared_ptr<const run_counters> current() const {
    const std::lock_guard lock{mutex_};
    return run_;
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const run_counters> run_;
};

struct health {
  bool good = true;
  std::string why;  ///< one line, also of good health
};

/// Whether steps progress: no good once the last sign of life is older than the run's limit.
/// `now` as steady_now() tells it; `run` may be null.
health health_of(const run_counters* run, std::int64_t now);

}  // namespace rrfp::metrics

/// Holds the counters of the current run for the metrics server. It outlives the runs: each run
/// publishes its counters when it starts, and they stay until the next run starts.
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
  std::string why;  ///< one line, also when healthy
};

/// Whether steps progress: unhealthy once the last progress is older than the run's limit. `now` is
/// a steady_now(); `run` may be null.
health health_of(const run_counters* run, std::int64_t now);

}  // namespace rrfp::metrics

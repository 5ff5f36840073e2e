/// Records which collective a rank is in, for reports, and the total time in collectives.
#pragma once

#include <mutex>
#include <optional>

#include <rrfp/metrics/run_counters.hpp>
#include <rrfp/tp_coord/fingerprint.hpp>

namespace rrfp::actors {

/// Written by the rank's device thread; thread-safe to read.
class collective_watch {
 public:
  struct call {
    tp_coord::fingerprint print;
    std::int64_t began = 0;  ///< metrics::steady_now()
  };

  explicit collective_watch(metrics::rank_counters& counters) : counters_(counters) {}

  /// Called with each collective, on the thread that calls it.
  void enter(const tp_coord::fingerprint& print) {
    const std::lock_guard lock{mutex_};
    open_ = call{print, metrics::steady_now()};
  }
  void leave() {
    const std::lock_guard lock{mutex_};
    counters_.collectives.add();
    counters_.collective_ns.add(static_cast<std::uint64_t>(metrics::steady_now() - open_->began));
    open_.reset();
  }
  std::optional<call> open() const {
    const std::lock_guard lock{mutex_};
    return open_;
  }

 private:
  metrics::rank_counters& counters_;
  mutable std::mutex mutex_;
  std::optional<call> open_;
};

}  // namespace rrfp::actors

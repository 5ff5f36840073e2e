/// Records which collective a rank is in, for reports, and the total time in collectives.
#pragma once

#include <mutex>
#include <optional>

#include <rrfp/metrics/run_counters.hpp>

#include "collective_group.hpp"

namespace rrfp::actors {

/// Written by the rank's device thread; thread-safe to read.
class collective_watch final : public collective_observer {
 public:
  struct call {
    tp_coord::fingerprint print;
    std::int64_t began = 0;  ///< metrics::steady_now()
  };

  explicit collective_watch(metrics::rank_counters& counters) : counters_(counters) {}

  void enter(const tp_coord::fingerprint& print) override {
    const std::lock_guard lock{mutex_};
    open_ = call{print, metrics::steady_now()};
  }
  void leave() override {
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

/// What a rank computes on: work runs in the order in which it was posted. What computes never runs
/// on a mailbox's thread.
#pragma once

#include <chrono>
#include <functional>

namespace rrfp::actors {

class work_queue {
 public:
  work_queue() = default;
  work_queue(const work_queue&) = delete;
  work_queue& operator=(const work_queue&) = delete;
  virtual ~work_queue() = default;

  /// Thread-safe, as all of these. Dropped once stop() was called.
  virtual void post(std::function<void()> work) = 0;
  /// Runs `work`, is then taken for as long as that returns, then runs `after`. Once stopped,
  /// `after` does not run any more.
  virtual void occupy(std::function<std::chrono::nanoseconds()> work,
                      std::function<void()> after) = 0;
  /// Drops what has not begun and ends what only waits; does not wait for what runs.
  virtual void stop() = 0;
};

}  // namespace rrfp::actors

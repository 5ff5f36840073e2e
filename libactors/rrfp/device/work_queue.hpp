/// Runs work on another thread, in the order in which it was posted, so that computing and writing
/// never block an actor.
#pragma once

#include <functional>

namespace rrfp::actors {

class work_queue {
 public:
  work_queue() = default;
  work_queue(const work_queue&) = delete;
  work_queue& operator=(const work_queue&) = delete;
  virtual ~work_queue() = default;

  /// Thread-safe, like all functions here. After stop(), work is dropped.
  virtual void post(std::function<void()> work) = 0;
  /// Drops queued work and interrupts pauses; does not wait for running work.
  virtual void stop() = 0;
};

}  // namespace rrfp::actors

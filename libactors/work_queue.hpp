/// Work that runs elsewhere, in the order in which it was posted: what computes or writes never
/// runs on a mailbox's thread.
#pragma once

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
  /// Drops what has not begun and ends what only waits; does not wait for what runs.
  virtual void stop() = 0;
};

}  // namespace rrfp::actors

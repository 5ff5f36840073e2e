/// The thread beside a rank's actor, so that compute never blocks a mailbox. Work runs in the order
/// in which it was posted.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace rrfp::actors {

class compute_thread {
 public:
  /// Without work it looks for some for `spin` before it sleeps.
  explicit compute_thread(std::string name, std::chrono::microseconds spin = {});
  ~compute_thread();

  /// Thread-safe. Dropped once stop() was called.
  void post(std::function<void()> work);

  /// Called by work: stands still for `time`, or until stop() cuts it short; false if it did.
  bool pause(std::chrono::nanoseconds time);

  /// Drops what has not begun and ends pauses. Thread-safe; does not wait.
  void stop();
  bool stopped();

 private:
  void run();
  void look_for_work(std::unique_lock<std::mutex>& lock);

  const std::string name_;
  const std::chrono::microseconds spin_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> work_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace rrfp::actors

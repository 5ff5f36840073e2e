/// The compute thread of a rank, separate from its actor so that compute never blocks a mailbox.
/// Work runs in the order in which it was posted.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "device.hpp"

namespace rrfp::actors {

class compute_thread final : public device {
 public:
  /// An idle thread polls its queue for `spin` before it sleeps. `nice`: as of setpriority(2).
  explicit compute_thread(std::string name, std::chrono::microseconds spin = {}, int nice = 0);
  ~compute_thread() override;

  void post(std::function<void()> work) override;
  void stop() override;

 private:
  bool pause(std::chrono::nanoseconds time) override;
  void run();
  void spin_for_work(std::unique_lock<std::mutex>& lock);

  const std::string name_;
  const std::chrono::microseconds spin_;
  const int nice_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> work_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace rrfp::actors

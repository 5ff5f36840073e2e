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

#include "device.hpp"

namespace rrfp::actors {

class compute_thread final : public device {
 public:
  /// Without work it looks for some for `spin` before it sleeps.
  explicit compute_thread(std::string name, std::chrono::microseconds spin = {});
  ~compute_thread() override;

  void post(std::function<void()> work) override;
  /// Stands still after `work`.
  void occupy(std::function<std::chrono::nanoseconds()> work,
              std::function<void(const occupancy&)> after) override;
  void stop() override;

 private:
  /// False if stop() cut it short.
  bool pause(std::chrono::nanoseconds time);
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

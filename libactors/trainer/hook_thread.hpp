/// Calls user hooks one after another on their own thread, so that a slow hook does not block the
/// job.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace rrfp {

/// Thread-safe.
class hook_thread {
 public:
  hook_thread() : thread_([this] { run(); }) {}
  hook_thread(const hook_thread&) = delete;
  hook_thread& operator=(const hook_thread&) = delete;
  /// Waits until all posted calls have returned.
  ~hook_thread() {
    {
      const std::lock_guard lock{mutex_};
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  /// `call` must not throw.
  void post(std::function<void()> call) {
    {
      const std::lock_guard lock{mutex_};
      calls_.push_back(std::move(call));
    }
    changed_.notify_all();
  }

 private:
  void run() {
    std::unique_lock lock{mutex_};
    for (;;) {
      changed_.wait(lock, [this] { return ended_ || !calls_.empty(); });
      if (calls_.empty()) return;
      const auto call = std::move(calls_.front());
      calls_.pop_front();
      lock.unlock();
      call();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> calls_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace rrfp

/// Calls user hooks one after another on their own thread, so that a slow hook does not block the
/// job. What a hook throws is kept and does not affect the run.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include <rrfp/compute/compute_error.hpp>

namespace rrfp::actors {

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

  void post(const char* name, std::function<void()> hook) {
    {
      const std::lock_guard lock{mutex_};
      calls_.push_back([this, name, hook = std::move(hook)] { call(name, hook); });
    }
    changed_.notify_all();
  }

  /// On the thread of the caller.
  void call(const char* name, const std::function<void()>& hook) {
    std::string why;
    try {
      return hook();
    } catch (const std::exception& e) {
      why = std::string{name} + " threw: " + compute::first_line_of(e);
    } catch (...) {
      why = std::string{name} + " threw an object that is not a std::exception";
    }
    const std::lock_guard lock{mutex_};
    failures_ += (failures_.empty() ? "" : "; ") + why;
  }

  /// What hooks threw since the last call; empty: nothing.
  std::string take_failures() {
    const std::lock_guard lock{mutex_};
    return std::exchange(failures_, {});
  }

  /// Waits until all posted calls have returned.
  void drain() {
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [this] { return calls_.empty() && !calling_; });
  }

 private:
  void run() {
    std::unique_lock lock{mutex_};
    for (;;) {
      changed_.wait(lock, [this] { return ended_ || !calls_.empty(); });
      if (calls_.empty()) return;
      const auto call = std::move(calls_.front());
      calls_.pop_front();
      calling_ = true;
      lock.unlock();
      call();
      lock.lock();
      calling_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> calls_;
  bool calling_ = false;
  bool ended_ = false;
  std::string failures_;
  std::thread thread_;
};

}  // namespace rrfp::actors

/// Calls user hooks one after another on their own thread, so that a slow hook does not block the
/// job. What a hook throws is kept and does not affect the run.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <rrfp/compute/user_functions.hpp>
#include <rrfp/device/compute_thread.hpp>

namespace rrfp::actors {

/// Thread-safe.
class hook_thread {
 public:
  hook_thread() = default;
  hook_thread(const hook_thread&) = delete;
  hook_thread& operator=(const hook_thread&) = delete;
  /// Waits until all posted calls have returned.
  ~hook_thread() { drain(); }

  void post(const char* name, std::function<void()> hook) {
    thread_.post([this, name, hook = std::move(hook)] { call(name, hook); });
  }

  /// On the thread of the caller.
  void call(const char* name, const std::function<void()>& hook) {
    try {
      named(name, hook)();
    } catch (const std::exception& e) {
      const std::lock_guard lock{mutex_};
      failures_ += (failures_.empty() ? "" : "; ") + std::string{e.what()};
    }
  }

  /// What hooks threw since the last call; empty: nothing.
  std::string take_failures() {
    const std::lock_guard lock{mutex_};
    return std::exchange(failures_, {});
  }

  /// Waits until all posted calls have returned.
  void drain() {
    const auto done = std::make_shared<std::promise<void>>();
    auto drained = done->get_future();
    thread_.post([done] { done->set_value(); });
    drained.wait();
  }

 private:
  std::mutex mutex_;
  std::string failures_;
  compute_thread thread_{"hooks"};
};

}  // namespace rrfp::actors

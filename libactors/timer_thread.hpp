/// One thread that calls functions at their time, for any number of devices or links.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

namespace rrfp::actors {

class timer_thread {
 public:
  using clock = std::chrono::steady_clock;

  /// `name` is the thread's, of at most 15 characters.
  explicit timer_thread(const char* name);
  /// What is not due yet is not called any more.
  ~timer_thread();

  /// Calls `what` at `due` or soon after; of two with the same time, the first first. Thread-safe.
  void at(clock::time_point due, std::function<void()> what);

 private:
  struct entry {
    clock::time_point due;
    std::uint64_t number;
    std::function<void()> what;
  };
  struct later {
    bool operator()(const entry& a, const entry& b) const {
      return a.due != b.due ? a.due > b.due : a.number > b.number;
    }
  };

  void run(const char* name);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::priority_queue<entry, std::vector<entry>, later> entries_;
  std::uint64_t count_ = 0;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace rrfp::actors

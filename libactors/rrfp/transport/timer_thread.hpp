/// One thread that calls functions at given times, for any number of devices or links.
#pragma once

#include <chrono>
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
  /// Drops the calls that are not due yet.
  ~timer_thread();

  /// Calls `call` at `due` or soon after; calls with the same time keep their order. Thread-safe.
  void at(clock::time_point due, std::function<void()> call);

 private:
  struct entry {
    clock::time_point due;
    std::uint64_t number;
    std::function<void()> call;
  };
  struct later {
    bool operator()(const entry& a, const entry& b) const {
      return a.due != b.due ? a.due > b.due : a.number > b.number;
    }
  };

  void run(const char* name);

  std::mutex mutex_;
  /// A timer of the kernel, on which the thread sleeps until the first call is due. If a call comes
  /// before it, at() sets the timer, so the thread wakes only then, not to learn that it may sleep
  /// on. No timer slack delays it.
  const int descriptor_;
  bool is_asleep_ = false;
  std::priority_queue<entry, std::vector<entry>, later> entries_;
  std::uint64_t count_ = 0;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace rrfp::actors

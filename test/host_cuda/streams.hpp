/// CUDA streams and events for the host-side fake of CUDA, implemented with threads.
///
/// A stream is a thread that runs one piece of work after the other and pauses at random, so that
/// missing waits are found. Objects live as long as the process, because the library that they
/// replace is never unloaded either.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace rrfp::host_cuda {

/// A position in a stream.
class mark {
 public:
  using clock = std::chrono::steady_clock;

  bool is_done() const { return is_done_.load(); }
  /// Valid after is_done().
  clock::time_point time() const { return time_; }
  void set();
  void wait() const;

 private:
  std::atomic<bool> is_done_ = false;
  clock::time_point time_;
};

class stream {
 public:
  explicit stream(int device) : device_(device) {}
  stream(const stream&) = delete;
  stream& operator=(const stream&) = delete;

  int device() const { return device_; }
  void put(std::function<void()> work);
  std::shared_ptr<mark> put_mark();
  bool is_idle();
  /// Waits until all enqueued work has run.
  void drain() { put_mark()->wait(); }

 private:
  void run();

  const int device_;
  std::mutex mutex_;
  std::condition_variable news_;
  std::deque<std::function<void()>> queue_;
  bool is_busy_ = false;
  bool has_thread_ = false;
};

struct event {
  const int device;
  const bool timed;
  std::mutex mutex;
  std::shared_ptr<mark> last;  ///< null: never recorded

  std::shared_ptr<mark> get() {
    const std::lock_guard lock{mutex};
    return last;
  }
};

/// The current device of the calling thread.
int current_device();
/// The stream of `handle`, or the default stream of the current device.
stream& stream_of(void* handle);
/// Waits for all streams of a device.
void drain_device(int device);

/// Prints the reason to stderr and ends the process: the program under test is wrong.
[[noreturn]] void fault(const char* what);

/// Makes libtorch's operators run in the fake's streams, once libtorch's CUDA part is loaded.
void take_over_operators();

}  // namespace rrfp::host_cuda

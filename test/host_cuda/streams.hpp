/// Devices that are memory of the host: what a CUDA stream and a CUDA event are, by threads.
///
/// A stream is a thread that takes one piece of work after the other and dawdles now and then, so
/// that what ought to have waited for it is found out. Objects live as long as the process: the
/// library they stand in for is not unloaded either.
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

/// A place in a stream.
class mark {
 public:
  using clock = std::chrono::steady_clock;

  bool is_done() const { return is_done_.load(); }
  /// After is_done().
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
  /// Until all that is in it has run.
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

/// Of the calling thread.
int current_device();
/// The one that `handle` is, or the default one of the current device.
stream& stream_of(void* handle);
/// Waits for all streams of a device.
void drain_device(int device);

/// Says why on standard error and ends the process: the program under test is wrong.
[[noreturn]] void fault(const char* what);

/// Once libtorch's CUDA part is there, its operators run in streams of the host.
void take_over_operators();

}  // namespace rrfp::host_cuda

/// One thread that looks at events until they are done and says so: nobody blocks for a task, and
/// no stream waits for the host.
///
/// The events of one queue are those of one stream, in their order, so the oldest alone is asked.
/// While nothing is awaited the thread sleeps; while something is, it looks all the time at first,
/// then every few microseconds.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include <rrfp/accelerator/event_pool.hpp>

namespace rrfp::accelerator {

/// Thread-safe.
class event_poller {
 public:
  /// Error: the event cannot be asked.
  using on_done = std::function<void(const status&)>;
  using queue_id = std::uint64_t;

  /// Looks all the time for `spin` after something was done or new.
  explicit event_poller(std::chrono::microseconds spin);
  event_poller(const event_poller&) = delete;
  event_poller& operator=(const event_poller&) = delete;
  /// What is still awaited is dropped.
  ~event_poller();

  queue_id open_queue();
  /// Calls `done` on the poller's thread; it must not wait. Dropped if the queue is closed.
  void watch(queue_id queue, pooled_event e, on_done done);
  /// Calls nothing of the queue any more once it has returned; what is awaited is dropped. Not from
  /// a `done`.
  void close_queue(queue_id queue);

 private:
  struct awaited {
    pooled_event event;
    on_done done;
  };

  void run();
  /// One look at the oldest of every queue. True if one was done.
  bool look(std::unique_lock<std::mutex>& lock);

  const std::chrono::microseconds spin_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::map<queue_id, std::deque<awaited>> queues_;
  std::size_t awaited_ = 0;
  queue_id next_queue_ = 0;
  /// Whose `done` runs now; 0: nobody's.
  queue_id calling_ = 0;
  std::uint64_t news_ = 0;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace rrfp::accelerator

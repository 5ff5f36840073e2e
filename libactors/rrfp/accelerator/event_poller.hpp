/// A thread that polls events until they complete and then calls back, so that no thread blocks for
/// a task and no stream waits for the host.
///
/// The events of one queue belong to one stream and complete in order, so only the oldest is
/// polled. The thread sleeps while no event is pending; otherwise it polls continuously at first,
/// and then every few microseconds.
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
  /// Error: the event cannot be queried.
  using on_done = std::function<void(const status&)>;
  using queue_id = std::uint64_t;

  /// Polls continuously for `spin` after an event was added or completed.
  explicit event_poller(std::chrono::microseconds spin);
  event_poller(const event_poller&) = delete;
  event_poller& operator=(const event_poller&) = delete;
  /// Drops all pending events.
  ~event_poller();

  queue_id open_queue();
  /// `done` runs on the poller's thread and must not block. Ignored if the queue is closed.
  void watch(queue_id queue, pooled_event e, on_done done);
  /// Drops the pending events of the queue. After this returns, none of its callbacks runs. Must
  /// not be called from a callback.
  void close_queue(queue_id queue);

 private:
  struct awaited {
    pooled_event event;
    on_done done;
  };

  void run();
  /// Polls the oldest event of every queue. Returns whether one completed.
  bool poll(std::unique_lock<std::mutex>& lock);

  const std::chrono::microseconds spin_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::map<queue_id, std::deque<awaited>> queues_;
  std::size_t awaited_ = 0;
  queue_id next_queue_ = 0;
  /// The queue whose callback is running; 0: none.
  queue_id calling_ = 0;
  std::uint64_t additions_ = 0;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace rrfp::accelerator

#include <rrfp/accelerator/event_poller.hpp>

#include <pthread.h>
#include <sys/prctl.h>

#include <utility>

#include <rrfp/base/check.hpp>

namespace rrfp::accelerator {

namespace {

using clock = std::chrono::steady_clock;

/// Poll interval after a period without completions.
constexpr std::chrono::microseconds poll_interval{10};
/// Linux adds 50 microseconds to every sleep by default.
constexpr unsigned long timer_slack_ns = 1000;

}  // namespace

event_poller::event_poller(std::chrono::microseconds spin)
    : spin_(spin), thread_([this] { run(); }) {}

event_poller::~event_poller() {
  {
    const std::lock_guard lock{mutex_};
    stopped_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

event_poller::queue_id event_poller::open_queue() {
  const std::lock_guard lock{mutex_};
  queues_.emplace(++next_queue_, std::deque<awaited>{});
  return next_queue_;
}

void event_poller::watch(queue_id queue, pooled_event e, on_done done) {
  RRFP_CHECK(static_cast<bool>(e), "the event must not be empty");
  {
    const std::lock_guard lock{mutex_};
    const auto found = queues_.find(queue);
    if (found == queues_.end()) return;
    found->second.push_back({std::move(e), std::move(done)});
    ++awaited_;
    ++additions_;
  }
  wake_.notify_one();
}

void event_poller::close_queue(queue_id queue) {
  RRFP_CHECK(std::this_thread::get_id() != thread_.get_id(),
             "close_queue() must not be called from a callback");
  std::deque<awaited> dropped;
  std::unique_lock lock{mutex_};
  if (const auto found = queues_.find(queue); found != queues_.end()) {
    dropped = std::move(found->second);
    awaited_ -= dropped.size();
    queues_.erase(found);
  }
  idle_.wait(lock, [&] { return calling_ != queue; });
  lock.unlock();  // destroying the dropped callbacks may take long
}

void event_poller::run() {
  pthread_setname_np(pthread_self(), "events");
  prctl(PR_SET_TIMERSLACK, timer_slack_ns, 0, 0, 0);
  auto last_activity = clock::now();
  std::uint64_t seen = 0;
  std::unique_lock lock{mutex_};
  while (!stopped_) {
    if (awaited_ == 0) {
      wake_.wait(lock, [this] { return stopped_ || awaited_ > 0; });
      last_activity = clock::now();
      continue;
    }
    const bool any = poll(lock) || std::exchange(seen, additions_) != additions_;
    const auto now = clock::now();
    if (any) last_activity = now;
    lock.unlock();
    if (now - last_activity < spin_)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(poll_interval);
    lock.lock();
  }
}

bool event_poller::poll(std::unique_lock<std::mutex>& lock) {
  bool any = false;
  for (queue_id at = 0;;) {
    // A callback may open queues or add events, so the position is looked up again.
    const auto queue = queues_.upper_bound(at);
    if (queue == queues_.end()) return any;
    at = queue->first;
    if (queue->second.empty()) continue;
    const auto is_done = (*queue->second.front().event).query();
    if (is_done && !*is_done) continue;
    any = true;
    auto oldest = std::move(queue->second.front());
    queue->second.pop_front();
    --awaited_;
    calling_ = at;
    lock.unlock();
    oldest.done(is_done ? success() : status{is_done.failure()});
    oldest = {};
    lock.lock();
    calling_ = 0;
    idle_.notify_all();
    --at;  // check this queue again: its next event may be done as well
  }
}

}  // namespace rrfp::accelerator

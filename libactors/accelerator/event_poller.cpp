#include <rrfp/accelerator/event_poller.hpp>

#include <pthread.h>
#include <sys/prctl.h>

#include <utility>

#include <rrfp/schedule/check.hpp>

namespace rrfp::accelerator {

namespace {

using clock = std::chrono::steady_clock;

/// Between two looks, once nothing was done for a while.
constexpr std::chrono::microseconds look_every{10};
/// Linux adds 50 microseconds to every sleep unless it is told otherwise.
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
  RRFP_CHECK(static_cast<bool>(e), "an event that was recorded");
  {
    const std::lock_guard lock{mutex_};
    const auto found = queues_.find(queue);
    if (found == queues_.end()) return;
    found->second.push_back({std::move(e), std::move(done)});
    ++awaited_;
    ++news_;
  }
  wake_.notify_one();
}

void event_poller::close_queue(queue_id queue) {
  RRFP_CHECK(std::this_thread::get_id() != thread_.get_id(), "not from what the poller calls");
  std::deque<awaited> dropped;
  std::unique_lock lock{mutex_};
  if (const auto found = queues_.find(queue); found != queues_.end()) {
    dropped = std::move(found->second);
    awaited_ -= dropped.size();
    queues_.erase(found);
  }
  idle_.wait(lock, [&] { return calling_ != queue; });
  lock.unlock();  // what is dropped may hold much
}

void event_poller::run() {
  pthread_setname_np(pthread_self(), "events");
  prctl(PR_SET_TIMERSLACK, timer_slack_ns, 0, 0, 0);
  auto last_news = clock::now();
  std::uint64_t seen = 0;
  std::unique_lock lock{mutex_};
  while (!stopped_) {
    if (awaited_ == 0) {
      wake_.wait(lock, [this] { return stopped_ || awaited_ > 0; });
      last_news = clock::now();
      continue;
    }
    const bool any = look(lock) || std::exchange(seen, news_) != news_;
    const auto now = clock::now();
    if (any) last_news = now;
    lock.unlock();
    if (now - last_news < spin_)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(look_every);
    lock.lock();
  }
}

bool event_poller::look(std::unique_lock<std::mutex>& lock) {
  bool any = false;
  for (queue_id at = 0;;) {
    // A `done` may open queues and add to them: the place is found anew.
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
    --at;  // this queue once more: what came after it may be done, too
  }
}

}  // namespace rrfp::accelerator

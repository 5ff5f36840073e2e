#include "caller_queue.hpp"

#include <utility>

#include <rrfp/transport/pause.hpp>

namespace rrfp::actors {

class caller_queue::caller_device final : public device {
 public:
  explicit caller_device(caller_queue& queue) : queue_(queue) {}
  /// Waits for running work.
  ~caller_device() override {
    stop();
    std::unique_lock lock{queue_.mutex_};
    queue_.changed_.wait(lock, [this] { return queue_.running_ != this; });
  }

  void post(std::function<void()> work) override {
    std::unique_lock lock{queue_.mutex_};
    if (stopped_) return;
    queue_.items_.push_back({this, std::move(work), {}});
    queue_.changed_.notify_all();
    // Between two steps: a state to copy, for example.
    if (!queue_.has_caller_ && queue_.running_ == nullptr) queue_.run_all(lock);
  }

  void begin_step(step_id step) override {
    const std::lock_guard lock{queue_.mutex_};
    if (!stopped_) queue_.items_.push_back({this, {}, step});
  }

  void stop() override {
    std::deque<item> dropped;  // may have the last reference to what posts again
    const std::lock_guard lock{queue_.mutex_};
    stopped_ = true;
    for (auto& i : queue_.items_)
      if (i.of == this) dropped.push_back(std::move(i));
    std::erase_if(queue_.items_, [this](const item& i) { return i.of == this; });
    queue_.changed_.notify_all();
  }

 private:
  bool pause(std::chrono::nanoseconds time) override {
    std::unique_lock lock{queue_.mutex_};
    return !queue_.changed_.wait_until(lock, std::chrono::steady_clock::now() + time,
                                       [this] { return stopped_; });
  }

  caller_queue& queue_;
  bool stopped_ = false;
};

void caller_queue::run_until(const std::function<bool()>& is_done,
                             const std::function<void()>& look) {
  constexpr std::chrono::milliseconds moment{50};
  std::unique_lock lock{mutex_};
  has_caller_ = true;
  changed_.wait(lock, [this] { return running_ == nullptr; });
  const auto unlocked = [&lock](const auto& function) {
    lock.unlock();
    const auto result = function();
    lock.lock();
    return result;
  };
  try {
    while (!unlocked(is_done)) {
      const bool has_news = has_work_within(lock, moment);
      woken_ = false;
      if (has_work())
        run_first(lock);
      else if (!has_news && look)
        unlocked([&] { return look(), true; });
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    has_caller_ = false;
    throw;
  }
  run_all(lock);
  has_caller_ = false;
}

void caller_queue::run_first(std::unique_lock<std::mutex>& lock) {
  auto next = std::move(items_.front());
  items_.pop_front();
  running_ = next.of;
  lock.unlock();
  next.work();
  next.work = nullptr;
  lock.lock();
  running_ = nullptr;
  changed_.notify_all();
}

void caller_queue::run_all(std::unique_lock<std::mutex>& lock) {
  while (has_work()) run_first(lock);
}

bool caller_queue::has_work() {
  while (!items_.empty() && items_.front().begins && items_.front().begins == wanted_)
    items_.pop_front();
  return !items_.empty() && !items_.front().begins;
}

bool caller_queue::has_work_within(std::unique_lock<std::mutex>& lock,
                                   std::chrono::steady_clock::duration limit) {
  const auto may_go_on = [this] { return woken_ || has_work(); };
  const auto begun = std::chrono::steady_clock::now();
  for (std::chrono::steady_clock::duration waited{0}; !may_go_on() && waited < spin_;
       waited = std::chrono::steady_clock::now() - begun) {
    lock.unlock();
    pause(waited);
    lock.lock();
  }
  return changed_.wait_until(lock, begun + limit, may_go_on);
}

void caller_queue::expect_caller() {
  const std::lock_guard lock{mutex_};
  has_caller_ = true;
}

void caller_queue::want(step_id step) {
  expect_caller();
  const std::lock_guard lock{mutex_};
  wanted_ = step;
}

void caller_queue::forget() {
  const std::lock_guard lock{mutex_};
  wanted_.reset();
}

std::optional<step_id> caller_queue::unwanted_step() {
  const std::lock_guard lock{mutex_};
  return has_work() || items_.empty() ? std::nullopt : items_.front().begins;
}

void caller_queue::wake() {
  const std::lock_guard lock{mutex_};
  woken_ = true;
  changed_.notify_all();
}

std::unique_ptr<device> caller_queue::make_device() {
  return std::make_unique<caller_device>(*this);
}

}  // namespace rrfp::actors

#include "virtual_device.hpp"

#include <utility>

namespace rrfp::actors {

/// Shared with the timer's pending calls.
class virtual_device::state : public std::enable_shared_from_this<state> {
 public:
  explicit state(timer_thread& timer) : timer_(timer) {}

  void add(std::function<std::chrono::nanoseconds()> work,
           std::function<void(const occupancy&)> after) {
    {
      const std::lock_guard lock{mutex_};
      if (stopped_) return;
      waiting_.push_back({std::move(work), std::move(after)});
      if (std::exchange(busy_, true)) return;
    }
    advance(timer_thread::clock::now());
  }

  void stop() {
    std::deque<item> dropped;
    const std::lock_guard lock{mutex_};
    stopped_ = true;
    dropped.swap(waiting_);
  }

 private:
  struct item {
    std::function<std::chrono::nanoseconds()> work;
    std::function<void(const occupancy&)> after;
  };

  /// Runs queued work; the device has been free since `at`. Called by one thread at a time.
  void advance(timer_thread::clock::time_point at) {
    for (;;) {
      item next;
      {
        const std::lock_guard lock{mutex_};
        if (waiting_.empty()) {
          busy_ = false;
          return;
        }
        next = std::move(waiting_.front());
        waiting_.pop_front();
      }
      const auto time = next.work();
      if (!next.after) continue;
      const auto due = at + time;
      timer_.at(due, [self = shared_from_this(), due, after = std::move(next.after)] {
        if (self->is_stopped()) return;
        after({});
        self->advance(due);
      });
      return;
    }
  }
  bool is_stopped() {
    const std::lock_guard lock{mutex_};
    return stopped_;
  }

  timer_thread& timer_;
  std::mutex mutex_;
  std::deque<item> waiting_;
  bool busy_ = false;
  bool stopped_ = false;
};

virtual_device::virtual_device(timer_thread& timer) : state_(std::make_shared<state>(timer)) {}

virtual_device::~virtual_device() { state_->stop(); }

std::unique_ptr<virtual_device> virtual_device::share() const {
  return std::unique_ptr<virtual_device>{new virtual_device{state_}};
}

void virtual_device::post(std::function<void()> work) {
  state_->add(
      [work = std::move(work)] {
        work();
        return std::chrono::nanoseconds{0};
      },
      nullptr);
}

void virtual_device::occupy(std::function<std::chrono::nanoseconds()> work,
                            std::function<void(const occupancy&)> after) {
  state_->add(std::move(work), std::move(after));
}

void virtual_device::stop() { state_->stop(); }

}  // namespace rrfp::actors

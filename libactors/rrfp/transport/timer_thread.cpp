#include "timer_thread.hpp"

#include <algorithm>
#include <utility>

#include <sys/timerfd.h>

#include <rrfp/base/check.hpp>

#include <pthread.h>
#include <unistd.h>

namespace rrfp::actors {

namespace {

void set_timer(int descriptor, timer_thread::clock::time_point due) {
  // Zero would stop the timer; a time that has passed ends the sleep at once.
  const auto since_boot = std::max<std::int64_t>(due.time_since_epoch().count(), 1);
  constexpr std::int64_t second = 1'000'000'000;
  const itimerspec when{{}, {since_boot / second, since_boot % second}};
  RRFP_CHECK(timerfd_settime(descriptor, TFD_TIMER_ABSTIME, &when, nullptr) == 0,
             "the kernel must take the time of a timer");
}

}  // namespace

timer_thread::timer_thread(const char* name)
    : descriptor_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)) {
  RRFP_CHECK(descriptor_ >= 0, "the process must not run out of file descriptors");
  thread_ = std::thread{[this, name] { run(name); }};
}

timer_thread::~timer_thread() {
  {
    const std::lock_guard lock{mutex_};
    stopped_ = true;
    set_timer(descriptor_, {});
  }
  thread_.join();
  close(descriptor_);
}

void timer_thread::at(clock::time_point due, std::function<void()> call) {
  const std::lock_guard lock{mutex_};
  const bool is_next = entries_.empty() || due < entries_.top().due;
  entries_.push({due, count_++, std::move(call)});
  if (is_asleep_ && is_next) set_timer(descriptor_, due);
}

void timer_thread::run(const char* name) {
  pthread_setname_np(pthread_self(), name);
  std::unique_lock lock{mutex_};
  while (!stopped_) {
    const auto due = entries_.empty() ? clock::time_point::max() : entries_.top().due;
    if (due > clock::now()) {
      set_timer(descriptor_, due);
      is_asleep_ = true;
      lock.unlock();
      std::uint64_t expired = 0;
      static_cast<void>(read(descriptor_, &expired, sizeof expired));
      lock.lock();
      is_asleep_ = false;
    } else {
      auto call = std::move(const_cast<entry&>(entries_.top()).call);
      entries_.pop();
      lock.unlock();
      call();
      call = nullptr;
      lock.lock();
    }
  }
}

}  // namespace rrfp::actors

#include "timer_thread.hpp"

#include <utility>

#include <pthread.h>
#include <sys/prctl.h>

namespace rrfp::actors {

timer_thread::timer_thread(const char* name) : thread_([this, name] { run(name); }) {}

timer_thread::~timer_thread() {
  {
    const std::lock_guard lock{mutex_};
    stopped_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void timer_thread::at(clock::time_point due, std::function<void()> call) {
  bool is_next = false;
  {
    const std::lock_guard lock{mutex_};
    is_next = entries_.empty() || due < entries_.top().due;
    entries_.push({due, count_++, std::move(call)});
  }
  if (is_next) changed_.notify_one();
}

void timer_thread::run(const char* name) {
  pthread_setname_np(pthread_self(), name);
  prctl(PR_SET_TIMERSLACK, 1UL);  // the default of 50 us would delay every task
  std::unique_lock lock{mutex_};
  while (!stopped_) {
    if (entries_.empty()) {
      changed_.wait(lock);
    } else if (const auto due = entries_.top().due; due > clock::now()) {
      changed_.wait_until(lock, due);
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

#include "compute_thread.hpp"

#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <rrfp/transport/pause.hpp>

namespace rrfp::actors {

compute_thread::compute_thread(std::string name, std::chrono::microseconds spin, int nice)
    : name_(std::move(name)), spin_(spin), nice_(nice), thread_([this] { run(); }) {}

compute_thread::~compute_thread() {
  stop();
  thread_.join();
}

void compute_thread::post(std::function<void()> work) {
  {
    const std::lock_guard lock{mutex_};
    if (stopped_) return;
    work_.push_back(std::move(work));
  }
  wake_.notify_one();
}

bool compute_thread::pause(std::chrono::nanoseconds time) {
  std::unique_lock lock{mutex_};
  return !wake_.wait_until(lock, std::chrono::steady_clock::now() + time,
                           [this] { return stopped_; });
}

void compute_thread::stop() {
  std::deque<std::function<void()>> dropped;
  {
    const std::lock_guard lock{mutex_};
    stopped_ = true;
    dropped.swap(work_);
  }
  wake_.notify_all();
}

void compute_thread::run() {
  pthread_setname_np(pthread_self(), name_.substr(0, 15).c_str());
  prctl(PR_SET_TIMERSLACK, 1UL);                        // for injected delays; the default is 50 us
  if (nice_ != 0) setpriority(PRIO_PROCESS, 0, nice_);  // of this thread
  std::unique_lock lock{mutex_};
  for (;;) {
    spin_for_work(lock);
    wake_.wait(lock, [this] { return stopped_ || !work_.empty(); });
    if (stopped_) return;
    auto work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
}

void compute_thread::spin_for_work(std::unique_lock<std::mutex>& lock) {
  const auto begun = std::chrono::steady_clock::now();
  while (!stopped_ && work_.empty()) {
    const auto waited = std::chrono::steady_clock::now() - begun;
    if (waited >= spin_) return;
    lock.unlock();
    rrfp::actors::pause(waited);
    lock.lock();
  }
}

}  // namespace rrfp::actors

#include "streams.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <utility>

namespace rrfp::host_cuda {

namespace {

/// On average, a stream pauses once per this many pieces of work, to expose missing waits.
constexpr unsigned pause_every = 4;
constexpr unsigned pause_us_max = 200;

}  // namespace

void fault(const char* what) {
  std::fprintf(stderr, "host_cuda: %s\n", what);
  std::abort();
}

void mark::set() {
  time_ = clock::now();
  is_done_.store(true);
  is_done_.notify_all();
}

void mark::wait() const { is_done_.wait(false); }

void stream::put(std::function<void()> work) {
  const std::lock_guard lock{mutex_};
  queue_.push_back(std::move(work));
  if (!has_thread_) std::thread{[this] { run(); }}.detach();
  has_thread_ = true;
  news_.notify_one();
}

std::shared_ptr<mark> stream::put_mark() {
  auto made = std::make_shared<mark>();
  put([made] { made->set(); });
  return made;
}

bool stream::is_idle() {
  const std::lock_guard lock{mutex_};
  return queue_.empty() && !is_busy_;
}

void stream::run() {
  std::minstd_rand random{static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(this) >> 4)};
  std::unique_lock lock{mutex_};
  while (true) {
    is_busy_ = false;
    news_.wait(lock, [this] { return !queue_.empty(); });
    is_busy_ = true;
    auto work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    if (random() % pause_every == 0)
      std::this_thread::sleep_for(std::chrono::microseconds{random() % pause_us_max});
    work();
    work = nullptr;  // destroying it may call streams
    lock.lock();
  }
}

}  // namespace rrfp::host_cuda

/// Turns SIGINT, SIGTERM and SIGHUP into a call on a separate thread, which may lock and allocate;
/// SIGUSR1, which asks for a hang report, into another call. While a node may drain, its first
/// SIGTERM is no interrupt, but asks for that.
#pragma once

#include <csignal>
#include <ctime>

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "../common/console.hpp"

namespace rrfp::apps {

/// Construct it before any other thread: threads inherit the blocked signals, so only this one
/// takes them.
class interrupt_watch {
 public:
  interrupt_watch() {
    sigemptyset(&signals_);
    for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) sigaddset(&signals_, s);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::thread{[this] { watch(); }};
  }
  interrupt_watch(const interrupt_watch&) = delete;
  interrupt_watch& operator=(const interrupt_watch&) = delete;
  ~interrupt_watch() {
    done_ = true;
    thread_.join();
  }

  /// Sets the call for every signal, and calls it at once if one has already arrived; null: none.
  void on_interrupt(std::function<void()> call) {
    const std::lock_guard lock{mutex_};
    call_ = std::move(call);
    if (count_ > 0 && call_) call_();
  }
  /// Whether a first SIGTERM asks for a drain from now on. That it was asked for is kept.
  void let_drain(bool may) {
    const std::lock_guard lock{mutex_};
    may_drain_ = may;
  }
  /// Sets the call for the drain, and calls it at once if it was asked for; null: none.
  void on_drain(std::function<void()> call) {
    const std::lock_guard lock{mutex_};
    drain_ = std::move(call);
    if (is_draining_ && drain_) drain_();
  }
  bool is_draining() const { return is_draining_; }
  /// There will be no drain: if it was asked for, that was an interrupt.
  void give_up_drain() {
    const std::lock_guard lock{mutex_};
    if (is_draining_.exchange(false)) note_interrupt(SIGTERM);
  }
  /// Sets the call for every SIGUSR1; null: a line on stderr says that no run is in progress.
  void on_report(std::function<void()> call) {
    const std::lock_guard lock{mutex_};
    report_ = std::move(call);
  }
  /// Also true for a signal that this object's thread has yet to take.
  bool interrupted() const {
    sigset_t pending;
    sigpending(&pending);
    return sigismember(&pending, SIGINT) || sigismember(&pending, SIGTERM) ||
           sigismember(&pending, SIGHUP) || count_ > 0;
  }
  /// Number of signals so far, without SIGUSR1 and the one that asks for a drain.
  int count() const { return count_; }
  /// The last of these signals; 0: none.
  int last() const { return last_; }

 private:
  void watch() {
    const timespec period{0, 50'000'000};
    while (!done_) {
      const int number = sigtimedwait(&signals_, nullptr, &period);
      if (number < 0) continue;
      const std::lock_guard lock{mutex_};
      if (number == SIGUSR1) {
        if (report_)
          report_();
        else
          complain("no hang report: no run is in progress");
        continue;
      }
      if (number == SIGTERM && may_drain_ && count_ == 0 && !is_draining_.exchange(true)) {
        if (drain_) drain_();
        continue;
      }
      note_interrupt(number);
    }
  }
  /// Requires the lock.
  void note_interrupt(int number) {
    last_ = number;
    ++count_;
    if (call_) call_();
  }

  sigset_t signals_{};
  std::atomic<bool> done_ = false;
  std::atomic<int> count_ = 0;
  std::atomic<int> last_ = 0;
  std::mutex mutex_;
  std::function<void()> call_;
  std::function<void()> report_;
  std::function<void()> drain_;
  bool may_drain_ = false;
  std::atomic<bool> is_draining_ = false;
  std::thread thread_;
};

}  // namespace rrfp::apps

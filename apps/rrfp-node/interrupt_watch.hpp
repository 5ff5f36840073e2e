/// SIGINT, SIGTERM and SIGHUP as a call on a thread of its own, free to lock and to allocate;
/// SIGUSR1, which asks for a report, as another.
#pragma once

#include <csignal>
#include <ctime>

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "../common/console.hpp"

namespace rrfp::apps {

/// Made before any other thread, so that all of them leave the signals to this one.
class interrupt_watch {
 public:
  interrupt_watch() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    sigaddset(&signals_, SIGHUP);
    sigaddset(&signals_, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::thread{[this] { watch(); }};
  }
  interrupt_watch(const interrupt_watch&) = delete;
  interrupt_watch& operator=(const interrupt_watch&) = delete;
  ~interrupt_watch() {
    done_ = true;
    thread_.join();
  }

  /// Called at every signal from now on, also for one that came before; null: nobody.
  void on_interrupt(std::function<void()> call) {
    const std::lock_guard lock{mutex_};
    call_ = std::move(call);
    if (count_ > 0 && call_) call_();
  }
  /// Called at every SIGUSR1 from now on; null: it is told on stderr that there is nothing to
  /// report.
  void on_report(std::function<void()> call) {
    const std::lock_guard lock{mutex_};
    report_ = std::move(call);
  }
  bool interrupted() const { return count_ > 0; }
  /// Signals so far.
  int count() const { return count_; }
  /// The last of them; 0: none.
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
          write_error("rrfp-node: nothing to report: no run is under way\n");
        continue;
      }
      last_ = number;
      ++count_;
      if (call_) call_();
    }
  }

  sigset_t signals_{};
  std::atomic<bool> done_ = false;
  std::atomic<int> count_ = 0;
  std::atomic<int> last_ = 0;
  std::mutex mutex_;
  std::function<void()> call_;
  std::function<void()> report_;
  std::thread thread_;
};

}  // namespace rrfp::apps

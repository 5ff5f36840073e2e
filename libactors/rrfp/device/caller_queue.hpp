/// Devices whose work runs on the thread of the program that waits for a step, for frameworks whose
/// state belongs to a thread: autograd modes, profilers, debuggers.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "device.hpp"

namespace rrfp::actors {

/// The work of all ranks of a process, in the order in which it came. What comes between two steps,
/// a state to copy for example, runs on the thread that posts it. Thread-safe.
class caller_queue {
 public:
  /// An idle caller polls the queue for `spin` before it sleeps.
  explicit caller_queue(std::chrono::microseconds spin) : spin_(spin) {}
  caller_queue(const caller_queue&) = delete;
  caller_queue& operator=(const caller_queue&) = delete;

  /// Runs work on this thread until `is_done` returns true, which is asked after each piece of work
  /// and after wake(). `look` is called about every 50 ms without work. One thread at a time.
  void run_until(const std::function<bool()>& is_done, const std::function<void()>& look);
  /// Before run_until(): from now on work waits for it.
  void expect_caller();
  /// expect_caller(), and the work of this step may begin. Work of other steps waits; other nodes
  /// may have begun the next one.
  void want(step_id step);
  /// Before a run: no step is wanted yet, also not the one that the run before has not completed.
  void forget();
  /// A step that other nodes have begun, and that is not the one that is wanted.
  std::optional<step_id> unwanted_step();
  void wake();

  std::unique_ptr<device> make_device();

 private:
  class caller_device;

  /// Work, or the beginning of a step.
  struct item {
    const caller_device* of = nullptr;
    std::function<void()> work;
    std::optional<step_id> begins;
  };

  /// Drops the beginnings that are wanted.
  bool has_work();
  /// Unlocks meanwhile.
  void run_first(std::unique_lock<std::mutex>& lock);
  void run_all(std::unique_lock<std::mutex>& lock);
  bool has_work_within(std::unique_lock<std::mutex>& lock,
                       std::chrono::steady_clock::duration limit);

  const std::chrono::microseconds spin_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<item> items_;
  const caller_device* running_ = nullptr;
  bool has_caller_ = false;  ///< from expect_caller() to the end of run_until()
  bool woken_ = false;
  std::optional<step_id> wanted_;
};

}  // namespace rrfp::actors

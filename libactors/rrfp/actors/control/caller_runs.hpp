/// Actors that run on the thread that posts to them, instead of waking a thread of the scheduler.
///
/// Waking a thread on another core takes 25 to 50 us on a virtual machine, often longer than all
/// handlers between the end of a task and the next launch. A thread therefore collects the actors
/// to which it posts, and runs them after its own work.
#pragma once

#include <vector>

#include <caf/all.hpp>

namespace rrfp::actors {

/// A base of actors that any thread may run, because their handlers never block. Other actors
/// always run on the scheduler.
class runs_anywhere {
 public:
  virtual ~runs_anywhere() = default;
  /// Thread-safe. False: the next handler may take more than microseconds, so the scheduler runs
  /// the actor.
  virtual bool is_quick() const { return true; }
};

/// The execution unit of CAF that collects actors.
class collector final : public caf::execution_unit {
 public:
  /// Null: this thread collects none, or none of `system` now.
  static caf::execution_unit* of_this_thread(caf::actor_system& system);

  void exec_later(caf::resumable* actor) override;
  void run();

 private:
  std::vector<caf::resumable*> woken_;
};

/// While the outermost scope of a thread exists, actors are collected; its end runs them.
class caller_runs {
 public:
  caller_runs();
  caller_runs(const caller_runs&) = delete;
  caller_runs& operator=(const caller_runs&) = delete;
  ~caller_runs();

 private:
  collector collector_;
  bool is_outermost_;
};

/// For a thread with a loop: runs what the thread has collected since the last call. The first call
/// begins.
void run_collected_actors();

}  // namespace rrfp::actors

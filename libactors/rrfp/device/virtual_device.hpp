/// An emulated device: busy for the time that a task would take, without using a core.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "device.hpp"

#include <rrfp/transport/timer_thread.hpp>

namespace rrfp::actors {

/// Work is short: it runs on the caller's thread if the device is free, else on the timer's thread.
/// A queued task begins when the task before it ends in virtual time, even if the timer was late,
/// so that delays of the timer do not add up.
class virtual_device final : public device {
 public:
  /// `timer` must not end before the last call of post() or occupy().
  explicit virtual_device(timer_thread& timer);
  ~virtual_device() override;
  /// The same device for another rank: it does the work of both, one task after the other.
  std::unique_ptr<virtual_device> share() const;

  void post(std::function<void()> work) override;
  void occupy(std::function<std::chrono::nanoseconds()> work,
              std::function<void(const occupancy&)> after) override;
  void stop() override;

 private:
  class state;
  explicit virtual_device(std::shared_ptr<state> shared) : state_(std::move(shared)) {}
  const std::shared_ptr<state> state_;
};

}  // namespace rrfp::actors

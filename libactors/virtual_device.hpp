/// A device that is taken for as long as a task would take it, and burns nothing meanwhile.
#pragma once

#include <deque>
#include <memory>
#include <mutex>

#include "device.hpp"
#include "timer_thread.hpp"

namespace rrfp::actors {

/// Its work is short: it runs on the caller's thread if the device is free, else on the timer's.
/// What waits behind a task begins when that ends by its own clock, however late the timer was:
/// lateness does not add up.
class virtual_device final : public device {
 public:
  /// Once `timer` has ended, nothing is posted any more.
  explicit virtual_device(timer_thread& timer);
  ~virtual_device() override;

  void post(std::function<void()> work) override;
  void occupy(std::function<std::chrono::nanoseconds()> work,
              std::function<void(const occupancy&)> after) override;
  void stop() override;

 private:
  class state;
  const std::shared_ptr<state> state_;
};

}  // namespace rrfp::actors

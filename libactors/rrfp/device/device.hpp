/// The interface between a rank's actor and what the rank computes on: it runs launches, reports
/// when they end, and copies tensors in and out. Implementations: compute_thread (cpu),
/// caller_queue (cpu, on the thread of the program), virtual_device (emulated), accelerated_device
/// (cuda; libactors/rrfp/torch_actors).
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <utility>

#include <rrfp/base/ids.hpp>
#include <rrfp/base/result.hpp>
#include <rrfp/base/tensor_buffer.hpp>
#include <rrfp/compute/step_measures.hpp>

namespace rrfp::actors {

/// What one launch used of the device.
struct occupancy {
  /// Error: the device could not determine whether the launch has ended.
  status outcome = success();
  /// Time measured by the device; nothing: the time since `work` began counts.
  std::optional<std::chrono::nanoseconds> busy;
  /// Device memory when the launch had ended; zeroes if the device has no memory of its own.
  compute::memory_counts memory;
};

class device {
 public:
  device() = default;
  device(const device&) = delete;
  device& operator=(const device&) = delete;
  virtual ~device() = default;

  /// Runs work in the order in which it was posted: on another thread, or, if it cannot block an
  /// actor, on the caller's. Thread-safe, like all functions here. After stop(), work is dropped.
  virtual void post(std::function<void()> work) = 0;
  /// Drops queued work and interrupts pauses; does not wait for running work.
  virtual void stop() = 0;

  /// Runs `work`, stays busy for the time that it returns, and then calls `after`, from any thread
  /// and in the order of the launches. The results of `work` are complete by then. `after` is not
  /// called after stop().
  virtual void occupy(std::function<std::chrono::nanoseconds()> work,
                      std::function<void(const occupancy&)> after) {
    post([this, work = std::move(work), after = std::move(after)] {
      const auto time = work();
      if (time.count() <= 0 || pause(time)) after({});
    });
  }

  /// The work that follows belongs to this step: a device on the thread of the program waits until
  /// the program wants it.
  virtual void begin_step(step_id /*step*/) {}

  /// Whether the thread that calls `after` may do other work then. False: it serves other devices,
  /// or stop() must not be called there.
  virtual bool may_linger_after() const { return true; }

  /// Whether work on this device can read `t` (complete) where it is. If so, the device keeps `t`
  /// alive for its streams; if not, use copy_in().
  virtual bool can_read(const tensor_buffer& /*t*/) { return true; }
  using on_copied = std::function<void(result<tensor_buffer>)>;
  /// Copies `t` from other memory while work runs. `then` is called from any thread.
  virtual void copy_in(tensor_buffer t, on_copied then) { then(std::move(t)); }
  /// Copies `t`, which is complete and in memory of this device, to host memory.
  virtual void copy_out(tensor_buffer t, on_copied then) { then(std::move(t)); }

 private:
  /// Sleeps on the thread of posted work, for a device that does not override occupy(). False if
  /// stop() interrupted it.
  virtual bool pause(std::chrono::nanoseconds /*time*/) { return true; }
};

}  // namespace rrfp::actors

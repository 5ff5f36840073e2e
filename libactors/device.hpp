/// What a rank computes on, and all that its actor knows of it: it launches, says when a launch has
/// ended, and brings tensors in and out. cpu (compute_thread), emulated (virtual_device) and cuda
/// (accelerated_device) differ in nothing else.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>

#include <rrfp/accelerator/platform.hpp>
#include <rrfp/schedule/result.hpp>

#include "work_queue.hpp"

namespace rrfp::actors {

/// How the device was taken by a launch.
struct occupancy {
  /// Why it could not be told that the launch has ended.
  status outcome = success();
  /// As the device has measured it; nothing: since `work` began.
  std::optional<std::chrono::nanoseconds> busy;
  /// Of the memory of the device, when the launch had ended; zeroes: it has none of its own.
  accelerator::memory_counts memory;
};

class device : public work_queue {
 public:
  /// Runs `work`, is then taken for as long as that returns, then runs `after`, from any thread and
  /// in the order of the launches: what `work` has computed is there. Once stopped, `after` does
  /// not run any more.
  virtual void occupy(std::function<std::chrono::nanoseconds()> work,
                      std::function<void(const occupancy&)> after) = 0;

  /// Whether work of this device may read `t`, complete, at once; it will. Else: copy_in.
  virtual bool can_read(const at::Tensor& /*t*/) { return true; }
  using on_copied = std::function<void(result<at::Tensor>)>;
  /// Copies `t`, of another memory, beside running work. `then` is called from any thread.
  virtual void copy_in(at::Tensor t, on_copied then) { then(std::move(t)); }
  /// Copies `t`, complete and in memory of this device, to where the host reads it.
  virtual void copy_out(at::Tensor t, on_copied then) { then(std::move(t)); }
};

}  // namespace rrfp::actors

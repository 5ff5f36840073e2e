/// A device with streams of its own. Its thread only puts work into the compute stream; that a
/// launch has ended is seen by the poller of the process, which all devices share. So launches
/// queue on the device itself, and the next one begins while the last one's end is still on its way
/// to the supervisor.
///
/// Copies go through a stream of their own, beside the work: in from the memory that messages
/// arrive in, out to pinned slabs. A tensor goes out only when its launch has ended.
#pragma once

#include <memory>
#include <string>

#include <rrfp/accelerator/event_poller.hpp>
#include <rrfp/accelerator/platform.hpp>

#include "compute_thread.hpp"
#include "device.hpp"
#include "ucx/slab_pool.hpp"

namespace rrfp::actors {

struct accelerated_parts {
  std::shared_ptr<accelerator::lane> lane;
  std::shared_ptr<accelerator::event_poller> poller;
  /// Of memory that the device reaches by itself.
  std::shared_ptr<ucx::slab_pool> slabs;
  /// Kernel times by events of the device, and its memory, for every launch.
  bool measured = false;
};

class accelerated_device final : public device {
 public:
  /// Without work its thread looks for some for `spin` before it sleeps.
  accelerated_device(std::string name, accelerated_parts parts, std::chrono::microseconds spin);
  ~accelerated_device() override;

  void post(std::function<void()> work) override;
  void occupy(std::function<std::chrono::nanoseconds()> work,
              std::function<void(const occupancy&)> after) override;
  bool can_read(const at::Tensor& t) override;
  void copy_in(at::Tensor t, on_copied then) override;
  void copy_out(at::Tensor t, on_copied then) override;
  void stop() override;

 private:
  class streams;
  const std::shared_ptr<streams> streams_;
  compute_thread thread_;
};

}  // namespace rrfp::actors

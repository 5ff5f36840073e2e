/// A device with its own streams. Its thread only enqueues work into the compute stream; a poller,
/// which all devices of the process share, detects from events that a launch has ended. So launches
/// queue on the device itself, and the next one begins while the end of the last one is still on
/// its way to the supervisor.
///
/// Copies use a separate stream and overlap with the work: inputs come from the memory in which
/// messages arrive, outputs go to pinned slabs. An output is copied only when its launch has ended.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <rrfp/accelerator/event_poller.hpp>
#include <rrfp/accelerator/platform.hpp>
#include <rrfp/device/compute_thread.hpp>
#include <rrfp/device/device.hpp>
#include <rrfp/transport/slab_pool.hpp>

namespace rrfp::actors {

struct accelerated_parts {
  std::shared_ptr<accelerator::lane> lane;
  std::shared_ptr<accelerator::event_poller> poller;
  /// Pinned host memory, which the device accesses directly.
  std::shared_ptr<ucx::slab_pool> slabs;
  /// Whether to measure kernel times by device events, and device memory, for every launch.
  bool measured = false;
};

class accelerated_device final : public device {
 public:
  /// An idle thread polls its queue for `spin` before it sleeps.
  accelerated_device(std::string name, accelerated_parts parts, std::chrono::microseconds spin);
  ~accelerated_device() override;

  void post(std::function<void()> work) override;
  void occupy(std::function<std::chrono::nanoseconds()> work,
              std::function<void(const occupancy&)> after) override;
  bool may_linger_after() const override { return false; }
  bool can_read(const tensor_buffer& t) override;
  void copy_in(tensor_buffer t, on_copied then) override;
  void copy_out(tensor_buffer t, on_copied then) override;
  void stop() override;

 private:
  using clock = std::chrono::steady_clock;
  struct copy {
    tensor_buffer from;
    tensor_buffer to;
  };

  void launch(const std::function<std::chrono::nanoseconds()>& work,
              const std::function<void(const occupancy&)>& after);
  status begin_measuring(std::shared_ptr<accelerator::pooled_event>& first);
  /// Called for the launches in their order.
  occupancy end_of(clock::time_point begun, accelerator::pooled_event* first,
                   accelerator::event& last, const status& done);
  /// Keeps both tensors until the copy is done.
  void when_copied(copy c, accelerator::pooled_event mark, on_copied then);

  const accelerated_parts parts_;
  const std::shared_ptr<accelerator::event_pool> events_;
  const accelerator::event_poller::queue_id launches_;
  const accelerator::event_poller::queue_id copies_;
  clock::time_point last_end_;
  std::mutex mutex_;
  std::vector<copy> kept_for_ever_;
  compute_thread thread_;  ///< last: its work uses the other members
};

}  // namespace rrfp::actors

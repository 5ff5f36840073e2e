/// The interface to devices with their own memory and streams. The implementation (CUDA, NCCL) is a
/// plugin that is loaded only when a job asks for it. Programs therefore start without a driver and
/// without delay, and no CUDA header is visible here.
///
/// A platform is the set of devices of one kind on this machine. A lane belongs to one rank: one
/// compute stream and one copy stream on one device. Work is enqueued into a stream and runs later,
/// in order; an event marks a position in a stream and tells whether the work before it is done.
///
/// Operating errors are results that name the failed call and the device. Exceptions that libtorch
/// throws inside run() propagate.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <rrfp/base/result.hpp>
#include <rrfp/compute/step_measures.hpp>
#include <rrfp/tp_coord/collective.hpp>

namespace rrfp::accelerator {

/// Program and plugin must come from the same build.
inline constexpr const char* plugin_version = "rrfp-plugin-1";

enum class stream : std::uint8_t { compute, copy };

/// A mark in a stream; may be recorded again once it is done.
class event {
 public:
  event() = default;
  event(const event&) = delete;
  event& operator=(const event&) = delete;
  virtual ~event() = default;

  /// Whether all work that was in the stream at record() is done. Does not wait. Thread-safe.
  virtual result<bool> query() = 0;
};

/// One thread at a time may call, except for the functions documented as thread-safe.
class lane {
 public:
  lane() = default;
  lane(const lane&) = delete;
  lane& operator=(const lane&) = delete;
  virtual ~lane() = default;

  virtual at::Device device() const = 0;

  /// Runs `work` now, on this thread; its tensor operations are enqueued into stream `s`. This
  /// function and all that follow are thread-safe.
  virtual void run(stream s, const std::function<void()>& work) = 0;
  /// `timed`: the event can be used in milliseconds_between(), at a higher cost.
  virtual result<std::unique_ptr<event>> make_event(bool timed) = 0;
  /// `e` must belong to this lane.
  virtual status record(event& e, stream s) = 0;
  /// Both events must be done and timed.
  virtual result<double> milliseconds_between(event& from, event& to) = 0;
  /// Keeps the compute stream busy for `time` without using a host thread.
  virtual status delay(std::chrono::nanoseconds time) = 0;
  /// Declares that the compute stream will read `t`, a tensor of this device. Its memory is not
  /// reused before that read is done, whichever thread releases the tensor.
  virtual void claim(const at::Tensor& t) = 0;
  /// Enqueues a copy into the copy stream. `from` is contiguous, on this device and complete; both
  /// buffers must stay valid until the copy is done.
  virtual status copy_out(const at::Tensor& from, std::byte* to) = 0;
  /// Copies from host memory or another device into a new tensor on this device, which is claimed.
  virtual result<at::Tensor> copy_in(const at::Tensor& from) = 0;
  /// New claimed memory that no stream uses, into which others write received data.
  virtual result<at::Tensor> make_receive_buffer(at::IntArrayRef shape, at::ScalarType type) = 0;
  virtual compute::memory_counts memory() const = 0;
};

/// Thread-safe. Must outlive its lanes and collectives.
class platform {
 public:
  platform() = default;
  platform(const platform&) = delete;
  platform& operator=(const platform&) = delete;
  virtual ~platform() = default;

  /// The names of the devices; at least one.
  virtual const std::vector<std::string>& devices() const = 0;
  virtual result<std::shared_ptr<lane>> open_lane(std::uint32_t device) = 0;

  /// Selects a device of this process as the current device of the calling thread.
  virtual status enter_thread() = 0;

  /// Host memory that devices can access directly, aligned to 64 bytes; null if there is none left.
  virtual void* allocate_pinned(std::size_t bytes) = 0;
  virtual void free_pinned(void* memory) = 0;

  /// The member of a group whose buffers are memory of the lane's device. `control` is the same
  /// member of a group over host memory, which the ranks use to connect.
  virtual std::shared_ptr<tp_coord::collective> make_collective(
      std::shared_ptr<tp_coord::collective> control, std::shared_ptr<lane> rank_lane,
      const tp_coord::collective_options& options) = 0;
};

/// The result of the function that the plugin exports as `open_symbol`: the platform, or the reason
/// why there is none. `deterministic`: equal work gives equal bits; the environment is already set.
struct opened {
  std::shared_ptr<platform> made;
  std::string failure;
};
using open_function = void (*)(const char* version, bool deterministic, opened& answer);
inline constexpr const char* open_symbol = "rrfp_open_platform";

}  // namespace rrfp::accelerator

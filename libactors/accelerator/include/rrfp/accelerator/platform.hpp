/// The door to devices with memory and streams of their own. What lies behind it (CUDA, NCCL) is a
/// library that is loaded when a job asks for it: a program starts as fast, and without a driver,
/// as if there were none, and no header of CUDA is seen on this side.
///
/// A platform is the devices of one kind of this machine. A lane is the part of one rank: a stream
/// to compute on and one to copy on, on one device. Work is put into a stream and runs later, in
/// order; an event marks a place in a stream and tells whether the work before it is done.
///
/// Operating errors are results that name the call that failed and the device. What libtorch throws
/// inside of run() passes through.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <rrfp/schedule/result.hpp>
#include <rrfp/tp_coord/collective.hpp>

namespace rrfp::accelerator {

/// Both ends of the door are of one build.
inline constexpr const char* door_version = "rrfp-door-1";

enum class stream : std::uint8_t { compute, copy };

/// A mark in a stream; may be recorded again once it is done.
class event {
 public:
  event() = default;
  event(const event&) = delete;
  event& operator=(const event&) = delete;
  virtual ~event() = default;

  /// Whether all that was in the stream when it was recorded is done. Does not wait; from any
  /// thread.
  virtual result<bool> query() = 0;
};

struct device_info {
  std::string name;
  std::uint64_t bytes = 0;  ///< of its memory
};

/// Of the process on one device, in bytes.
struct memory_counts {
  std::int64_t allocated = 0;       ///< in tensors
  std::int64_t allocated_peak = 0;  ///< the most since a lane was opened last
  std::int64_t reserved = 0;        ///< taken from the device: tensors and what waits for new ones
};

/// The larger of each.
inline memory_counts most_of(const memory_counts& a, const memory_counts& b) {
  return {std::max(a.allocated, b.allocated), std::max(a.allocated_peak, b.allocated_peak),
          std::max(a.reserved, b.reserved)};
}

/// Calls come from one thread at a time, but for those said to be thread-safe.
class lane {
 public:
  lane() = default;
  lane(const lane&) = delete;
  lane& operator=(const lane&) = delete;
  virtual ~lane() = default;

  virtual at::Device device() const = 0;

  /// Runs `work` now, on this thread; what it computes with tensors goes into stream `s`. Thread-
  /// safe, as everything that follows.
  virtual void run(stream s, const std::function<void()>& work) = 0;
  /// `timed`: milliseconds_between() takes it; costs more.
  virtual result<std::unique_ptr<event>> make_event(bool timed) = 0;
  /// `e` is of this lane.
  virtual status record(event& e, stream s) = 0;
  /// Both are done and timed.
  virtual result<double> milliseconds_between(event& from, event& to) = 0;
  /// The compute stream stands still for so long, and no processor of the host does.
  virtual status delay(std::chrono::nanoseconds time) = 0;
  /// `t`, of this device, is about to be read in the compute stream: its memory is not used again
  /// before that is done, whoever lets go of it.
  virtual void claim(const at::Tensor& t) = 0;
  /// Puts a copy into the copy stream. `from` is contiguous, of this device and complete; both
  /// stay until the copy is done.
  virtual status copy_out(const at::Tensor& from, std::byte* to) = 0;
  /// The same from host memory or another device to a new tensor here, that is claimed.
  virtual result<at::Tensor> copy_in(const at::Tensor& from) = 0;
  /// New memory that no work in a stream touches, claimed: for what is put there by others.
  virtual result<at::Tensor> make_room(at::IntArrayRef shape, at::ScalarType type) = 0;
  virtual memory_counts memory() const = 0;
};

struct collective_options {
  /// How long a rank waits for the others to come.
  std::chrono::milliseconds limit{30'000};
  /// Sums run in the order of the ranks, whatever the library would do.
  bool in_rank_order = true;
  /// Before each call the ranks compare what it belongs to, and wait for each other.
  bool compare_calls = false;
};

/// Thread-safe. Outlives its lanes and collectives.
class platform {
 public:
  platform() = default;
  platform(const platform&) = delete;
  platform& operator=(const platform&) = delete;
  virtual ~platform() = default;

  /// At least one.
  virtual const std::vector<device_info>& devices() const = 0;
  virtual result<std::shared_ptr<lane>> open_lane(std::uint32_t device) = 0;

  /// From now on libraries that the calling thread calls find a device of this process chosen.
  virtual status enter_thread() = 0;

  /// Host memory that devices reach by themselves, aligned to 64 bytes; null if there is no more.
  virtual void* allocate_pinned(std::size_t bytes) = 0;
  virtual void free_pinned(void* memory) = 0;

  /// The member of a group whose buffers are memory of the lane's device. `control` is the same
  /// member of a group over host memory, over which the ranks find each other.
  virtual std::shared_ptr<tp_coord::collective> make_collective(
      std::shared_ptr<tp_coord::collective> control, std::shared_ptr<lane> where,
      const collective_options& options) = 0;
};

/// What the library behind the door exports under `open_symbol`: the platform, or why there is
/// none. `deterministic`: equal work gives equal bits; the environment is set already.
struct opened {
  std::shared_ptr<platform> made;
  std::string failure;
};
using open_function = void (*)(const char* version, bool deterministic, opened& answer);
inline constexpr const char* open_symbol = "rrfp_open_platform";

}  // namespace rrfp::accelerator

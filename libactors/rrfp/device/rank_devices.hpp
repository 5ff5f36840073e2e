/// Devices with memory of their own, for the ranks of a process. The framework that computes on
/// them provides them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <rrfp/transport/ucx_transport.hpp>

#include "device.hpp"
#include "rank_groups.hpp"

namespace rrfp::actors {

/// Memory for data that arrives from other nodes; empty: system memory.
struct arrival_memory {
  slab_memory host;
  ucx_transport::device_allocator on_devices;  ///< asked where UCX writes to devices
  std::function<void()> enter_thread;          ///< as in ucx_options
};

/// What a process asks for.
struct device_request {
  std::vector<rank_address> hosted;  ///< the ranks of this process, stage by stage
  /// The position of this process among the processes of the job on this machine, and their number.
  std::uint32_t place = 0;
  std::uint32_t processes = 1;
  /// How long a rank waits for the others of a group.
  std::chrono::milliseconds limit{0};
};

/// Thread-safe.
class rank_devices {
 public:
  rank_devices() = default;
  rank_devices(const rank_devices&) = delete;
  rank_devices& operator=(const rank_devices&) = delete;
  virtual ~rank_devices() = default;

  /// The groups of a rank, with collectives on its device where they are chosen.
  virtual rank_collectives join(rank_address rank, const rank_collectives& groups) const = 0;
  virtual std::unique_ptr<device> make_device(std::string name, rank_address rank) const = 0;
  virtual arrival_memory memory_of_arrivals() const = 0;
};

}  // namespace rrfp::actors

/// Which device a rank owns. Pure.
///
/// Stages that follow each other share a device rather than stages far apart: what they send each
/// other then needs no copy. Ranks that work in groups share none: a rank that waits for another
/// would hold up the device, and what the other waits for.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <rrfp/schedule/result.hpp>

namespace rrfp::accelerator {

/// Those of `wanted`, or all of `present` if none is wanted. Error: one that is not there, or that
/// stands twice.
result<std::vector<std::uint32_t>> choose_devices(std::span<const std::uint32_t> wanted,
                                                  std::uint32_t present);

/// The processes of one job on one machine, which share its devices.
struct machine_share {
  std::uint32_t place = 0;  ///< of this process among them
  std::uint32_t processes = 1;
};

/// The devices of one process: an even part, or one that it shares with others if there are fewer
/// devices than processes.
std::vector<std::uint32_t> devices_of(std::span<const std::uint32_t> devices,
                                      const machine_share& share);

/// The devices of so many ranks, which follow each other. Error: `alone`, and there are not enough.
result<std::vector<std::uint32_t>> assign_devices(std::size_t ranks,
                                                  std::span<const std::uint32_t> devices,
                                                  bool alone);

}  // namespace rrfp::accelerator

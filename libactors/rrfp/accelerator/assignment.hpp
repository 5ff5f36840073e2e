/// Assigns devices to ranks. Pure.
///
/// Consecutive stages share a device, because tensors between them then need no copy. Ranks of
/// tensor-parallel groups or replicas never share one: a rank that waits for another in a
/// collective would block the device that the other one needs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <rrfp/base/result.hpp>

namespace rrfp::accelerator {

/// Returns `wanted`, or all `present` devices if it is empty. Error: a device that does not exist
/// or is listed twice.
result<std::vector<std::uint32_t>> choose_devices(std::span<const std::uint32_t> wanted,
                                                  std::uint32_t present);

/// The devices of process `place` of the `processes` of one job on one machine, which share its
/// devices: an even part, or one shared device if there are fewer devices than processes.
std::vector<std::uint32_t> devices_of(std::span<const std::uint32_t> devices, std::uint32_t place,
                                      std::uint32_t processes);

/// The device of each of `ranks` consecutive ranks. Error: `alone` is set and there are too few
/// devices.
result<std::vector<std::uint32_t>> assign_devices(std::size_t ranks,
                                                  std::span<const std::uint32_t> devices,
                                                  bool alone);

}  // namespace rrfp::accelerator

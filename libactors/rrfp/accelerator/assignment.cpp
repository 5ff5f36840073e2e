#include <rrfp/accelerator/assignment.hpp>

#include <algorithm>
#include <numeric>
#include <string>

#include <rrfp/base/check.hpp>

namespace rrfp::accelerator {

result<std::vector<std::uint32_t>> choose_devices(std::span<const std::uint32_t> wanted,
                                                  std::uint32_t present) {
  std::vector<std::uint32_t> chosen(wanted.begin(), wanted.end());
  if (chosen.empty()) {
    chosen.resize(present);
    std::iota(chosen.begin(), chosen.end(), 0U);
    return chosen;
  }
  for (auto at = chosen.begin(); at != chosen.end(); ++at) {
    if (*at >= present)
      return error{"expected devices 0 to " + std::to_string(present - 1) +
                   ", which this machine has, got " + std::to_string(*at)};
    if (std::find(chosen.begin(), at, *at) != at)
      return error{"expected distinct devices, got " + std::to_string(*at) + " twice"};
  }
  return chosen;
}

std::vector<std::uint32_t> devices_of(std::span<const std::uint32_t> devices, std::uint32_t place,
                                      std::uint32_t processes) {
  RRFP_CHECK(!devices.empty() && place < processes,
             "there must be a device, and the place must be below the number of processes");
  const auto part = [&](std::uint32_t i) { return devices.size() * i / processes; };
  const auto begin = part(place);
  const auto end = std::max(part(place + 1), begin + 1);
  return {devices.begin() + static_cast<std::ptrdiff_t>(begin),
          devices.begin() + static_cast<std::ptrdiff_t>(end)};
}

result<std::vector<std::uint32_t>> assign_devices(std::size_t ranks,
                                                  std::span<const std::uint32_t> devices,
                                                  bool alone) {
  RRFP_CHECK(!devices.empty(), "there must be a device");
  if (alone && ranks > devices.size())
    return error{"expected one device for each of the " + std::to_string(ranks) +
                 " ranks of this process, because their collectives run on the devices, got " +
                 std::to_string(devices.size())};
  std::vector<std::uint32_t> assigned;
  for (std::size_t i = 0; i < ranks; ++i)
    assigned.push_back(devices[alone ? i : i * devices.size() / ranks]);
  return assigned;
}

}  // namespace rrfp::accelerator

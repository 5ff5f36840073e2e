/// What a process uses of the memory of a device.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rrfp::compute {

/// Memory of this process on one device, in bytes.
struct memory_counts {
  std::int64_t allocated = 0;       ///< in tensors
  std::int64_t allocated_peak = 0;  ///< maximum since the last lane was opened
  std::int64_t reserved = 0;        ///< taken from the device: tensors and cached blocks
};

/// The element-wise maximum.
inline memory_counts most_of(const memory_counts& a, const memory_counts& b) {
  return {std::max(a.allocated, b.allocated), std::max(a.allocated_peak, b.allocated_peak),
          std::max(a.reserved, b.reserved)};
}

}  // namespace rrfp::compute

/// What is measured of a step: the losses of its microbatches, and the memory of a device.
#pragma once

#include <algorithm>
#include <cstdint>

#include <rrfp/base/ids.hpp>

namespace rrfp::compute {

/// An evaluation has the same tasks as a training step, so the same scheduling, limits and
/// monitoring apply, but its B and W compute nothing.
///
/// A step of accumulation computes gradients, which the next training step adds to its own.
enum class step_purpose : std::uint8_t { training, evaluation, accumulation };

struct microbatch_loss {
  microbatch_id mb;
  double mean = 0;          ///< over the tokens that enter the loss, in nats
  std::int64_t tokens = 0;  ///< tokens that enter the loss
};

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

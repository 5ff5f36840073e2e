/// The arithmetic of all-reduce, one for all implementations: the same bits from each of them.
#pragma once

#include <cstddef>

#include <rrfp/tp_coord/order/fingerprint.hpp>

namespace rrfp::tp_coord {

/// sum[i] = sum[i] + next[i], or the larger one; `op` is sum or max.
void accumulate(operation op, element type, std::byte* sum, const std::byte* next,
                std::size_t count);

/// A part of a buffer, in elements.
struct part {
  std::size_t begin = 0;
  std::size_t count = 0;
};

/// Part `k` of `parts` of `count` elements: contiguous, evenly cut.
part part_of(std::size_t count, std::size_t k, std::size_t parts);

}  // namespace rrfp::tp_coord

/// The arithmetic of all-reduce, shared by all implementations so that they give the same bits.
#pragma once

#include <cstddef>

#include <rrfp/tp_coord/fingerprint.hpp>

namespace rrfp::tp_coord {

/// sum[i] = sum[i] + next[i] for sum, the larger of both for max; `op` must be one of these.
void accumulate(operation op, element type, std::byte* sum, const std::byte* next,
                std::size_t count);

/// A part of a buffer, in elements.
struct part {
  std::size_t begin = 0;
  std::size_t count = 0;
};

/// Part `k` of `parts` when `count` elements are split evenly into contiguous parts.
part part_of(std::size_t count, std::size_t k, std::size_t parts);

}  // namespace rrfp::tp_coord

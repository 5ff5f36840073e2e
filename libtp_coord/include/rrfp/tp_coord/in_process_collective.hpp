/// Collectives of ranks that are threads of one process.
///
/// Small buffers are reduced by the rank that comes last, while the others sleep: one wake-up a
/// call. Large ones are cut in as many parts as there are ranks, and each rank reduces one part of
/// all buffers. Ranks spin for a few microseconds if each has a core of its own, and sleep then.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include <rrfp/tp_coord/collective.hpp>

namespace rrfp::tp_coord {

struct in_process_options {
  /// How long a rank waits for the others in one call.
  std::chrono::milliseconds limit{30'000};
  /// From how many bytes on all ranks reduce. Measured by bench/collective.bench.cpp.
  std::size_t parallel_bytes_min = 256 * 1024;
};

/// The members of a new group, indexed by rank; each may go to a thread of its own. `size` is 1 to
/// 1024.
std::vector<std::unique_ptr<collective>> make_in_process_group(
    std::uint32_t size, const in_process_options& options = {});

}  // namespace rrfp::tp_coord

/// Collectives between ranks that are threads of one process.
///
/// For small buffers, the last rank to arrive reduces while the others sleep: one wake-up per call.
/// Large buffers are split into one part per rank, and each rank reduces one part of all buffers.
/// Ranks spin for a few microseconds if each has its own core, and then sleep.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include <rrfp/tp_coord/collective.hpp>

namespace rrfp::tp_coord {

struct in_process_options {
  /// Maximum time that a rank waits for the others in one call.
  std::chrono::milliseconds limit{30'000};
  /// From this size on, all ranks share the reduction. Measured with bench/collective.bench.cpp.
  std::size_t parallel_bytes_min = 256 * 1024;
};

/// The members of a new group, indexed by rank; each may run on its own thread. `size`: 1 to 1024.
std::vector<std::unique_ptr<collective>> make_in_process_group(
    std::uint32_t size, const in_process_options& options = {});

}  // namespace rrfp::tp_coord

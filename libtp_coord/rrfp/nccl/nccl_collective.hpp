/// Collectives over NCCL: buffers are memory of a CUDA device.
///
/// A call only enqueues work into the device's stream. The order within the stream makes the ranks
/// agree, so every rank must make the calls of a group in the same order (launches come in
/// sequence-number order). Comparing fingerprints would need a wait and is off by default.
///
/// In the first call, the ranks exchange the NCCL id over a collective in host memory and create
/// the communicator without blocking. A watcher thread polls all communicators of the process for
/// asynchronous errors and aborts those that have one: work that hangs on the device then ends,
/// health() returns the reason, and every later call fails with the same text.
///
/// NCCL sums in its own order, which is the same in every run with the same algorithm. With
/// `in_rank_order`, sums run in rank order as in all other collectives, so that the bits do not
/// depend on the placement of the ranks: each rank receives one part from all ranks, sums it in
/// rank order and sends it to all. The traffic equals that of a ring.
#pragma once

#include <cstddef>
#include <memory>

#include <cuda_runtime_api.h>

#include <rrfp/tp_coord/collective.hpp>

namespace rrfp::nccl {

/// Services that the owner of the device provides to the calls, on the calling thread.
class stream_host {
 public:
  stream_host() = default;
  stream_host(const stream_host&) = delete;
  stream_host& operator=(const stream_host&) = delete;
  virtual ~stream_host() = default;

  virtual int device() const = 0;
  /// The stream into which calls enqueue their work.
  virtual cudaStream_t stream() = 0;
  /// Device memory that is reused in the order of the stream.
  virtual result<std::shared_ptr<void>> scratch(std::size_t bytes) = 0;
  /// Enqueues sum[i] = parts[i] + parts[count + i] + ..., in this order. `sum` must not overlap the
  /// parts.
  virtual status sum_in_order(void* sum, const void* parts, std::size_t count, std::uint32_t ranks,
                              tp_coord::element type) = 0;
};

/// `control`: the same rank's member of a group over host memory.
std::unique_ptr<tp_coord::collective> make_nccl_collective(
    std::shared_ptr<tp_coord::collective> control, std::unique_ptr<stream_host> host,
    const tp_coord::collective_options& options);

}  // namespace rrfp::nccl

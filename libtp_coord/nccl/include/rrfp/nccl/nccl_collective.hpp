/// Collectives over NCCL: buffers are memory of a CUDA device.
///
/// A call only puts work into the device's stream; order in the stream makes ranks agree, so calls
/// of a group are made in the same order on every rank (launches come in sequence-number order).
/// Fingerprints cannot be compared without a wait and are not.
///
/// The ranks find each other in the first call, over a collective in host memory; the communicator
/// is made without blocking. A thread asks all communicators of the process for asynchronous errors
/// and ends those that have one: what hangs on the device then comes to an end, health() says why,
/// and every later call fails with the same text.
///
/// NCCL sums in an order of its own, the same in every run with the same algorithm; `in_rank_order`
/// sums as all other collectives do, so that the bits do not depend on where ranks live: each rank
/// collects one part from all, sums it in the order of the ranks and gives it to all. Traffic is
/// that of a ring.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

#include <cuda_runtime_api.h>

#include <rrfp/tp_coord/collective.hpp>

namespace rrfp::nccl {

/// What the calls need of the owner of the device. Called on the thread that makes the call.
class stream_host {
 public:
  stream_host() = default;
  stream_host(const stream_host&) = delete;
  stream_host& operator=(const stream_host&) = delete;
  virtual ~stream_host() = default;

  virtual int device() const = 0;
  /// Where the work of a call goes.
  virtual cudaStream_t stream() = 0;
  /// Memory of the device, which is used again in the order of the stream.
  virtual result<std::shared_ptr<void>> scratch(std::size_t bytes) = 0;
  /// sum[i] = parts[i] + parts[count + i] + ..., in this order, in the stream; `sum` is not among
  /// the parts.
  virtual status sum_in_order(void* sum, const void* parts, std::size_t count, std::uint32_t ranks,
                              tp_coord::element type) = 0;
};

struct nccl_options {
  /// How long a rank waits for the others to come, and for NCCL to take a call.
  std::chrono::milliseconds limit{30'000};
  bool in_rank_order = true;
  /// Before each call the ranks compare over `control` what it belongs to: those that disagree get
  /// an error that names both, where NCCL would hang. They wait for each other then.
  bool compare_calls = false;
};

/// `control`: the same rank's member of a group over host memory.
std::unique_ptr<tp_coord::collective> make_nccl_collective(
    std::shared_ptr<tp_coord::collective> control, std::unique_ptr<stream_host> host,
    const nccl_options& options = {});

/// Of the library that is loaded: "2.28.9".
std::string nccl_version();

}  // namespace rrfp::nccl

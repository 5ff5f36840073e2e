/// The machine that a model runs on: devices, links, and the share of peak that real kernels reach.
#pragma once

#include <cstdint>
#include <string>

#include <rrfp/base/result.hpp>

namespace rrfp::workload {

struct device {
  std::string name;
  double peak_flops = 0;        ///< FLOP/s, FP16 with FP32 accumulation, dense
  double memory_bandwidth = 0;  ///< bytes/s
  std::uint64_t memory_bytes = 0;
};

struct link {
  double bandwidth = 0;  ///< bytes/s, one way
  double latency_s = 0;
};

/// Ranks are placed in Megatron's default order: tensor-parallel ranks first, then replicas, then
/// stages, with `group` ranks per node.
struct machine {
  device each;
  std::uint32_t group = 8;
  link within;
  /// The single network adapter of a node; the ranks of a stage share it when they send together.
  link between;
  /// Share of the device's peak FLOP/s and memory bandwidth that kernels reach, equal for all
  /// kernels.
  double efficiency = 0.5;
  /// Seconds that a layer takes in each of F, B and W whatever its size: launches and small
  /// kernels.
  double layer_s = 0;
};

/// The default machine:
///   RTX 4090: 165.2 TFLOP/s, 1008 GB/s, 24 GiB (NVIDIA's Ada architecture paper, table 2);
///   within 8: PCIe 4.0 x16, 32 GB/s, halved because the device has no peer-to-peer access and
///     copies through host memory, 10 us;
///   between: InfiniBand HDR, 200 Gbit/s, 5 us (assumed; the paper names InfiniBand but no rate);
///   efficiency 0.5: assumed, in the middle of the 0.4 to 0.6 that Megatron reports for its runs.
machine rtx_4090_cluster();

/// Seconds to transfer a tensor of `bytes` while `shared_by` ranks share the link.
double transfer_s(const link& l, double bytes, double shared_by = 1);

/// Seconds of a ring all-reduce of `bytes` over `ranks`: 2 (ranks - 1) messages of bytes / ranks.
double all_reduce_s(const link& l, double bytes, std::uint32_t ranks, double shared_by = 1);

/// Seconds of a kernel: the longer of its compute time and its memory time.
double kernel_s(const machine& m, double flops, double bytes);

/// The error names the value that is out of range.
status validate(const machine& m);

}  // namespace rrfp::workload

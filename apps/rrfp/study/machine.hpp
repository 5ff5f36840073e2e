/// The machine that a model runs on: devices, links, and the share of peak that real kernels reach.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rrfp::study {

struct link {
  double bandwidth = 0;  ///< bytes/s, one way
  double latency_s = 0;
};

/// [machine]: in the units of the job file. Ranks are placed in Megatron's default order:
/// tensor-parallel ranks first, then replicas, then stages, with `group` ranks per node.
///
/// The default is a cluster of RTX 4090: 165.2 TFLOP/s, 1008 GB/s, 24 GiB (NVIDIA's Ada
/// architecture paper, table 2). Within 8: PCIe 4.0 x16, 32 GB/s, halved because the device has no
/// peer-to-peer access and copies through host memory, 10 us. Between: InfiniBand HDR, 200 Gbit/s,
/// 5 us (assumed; the paper names InfiniBand but no rate). Efficiency 0.5: assumed, in the middle
/// of the 0.4 to 0.6 that Megatron reports for its runs.
struct machine {
  double tflops = 165.2;  ///< FP16 with FP32 accumulation, dense
  double memory_gb_s = 1008;
  double memory_gib = 24;
  std::uint32_t group = 8;
  double within_gb_s = 16;
  double within_us = 10;
  /// The single network adapter of a node; the ranks of a stage share it when they send together.
  double between_gb_s = 25;
  double between_us = 5;
  /// Share of the device's peak FLOP/s and memory bandwidth that kernels reach, equal for all
  /// kernels.
  double efficiency = 0.5;
  /// Time that a layer takes in each of F, B and W whatever its size: launches and small kernels.
  double layer_us = 0;

  link within() const { return {within_gb_s * 1e9, within_us * 1e-6}; }
  link between() const { return {between_gb_s * 1e9, between_us * 1e-6}; }
};

/// Seconds to transfer a tensor of `bytes` while `shared_by` ranks share the link.
inline double transfer_s(const link& l, double bytes, double shared_by = 1) {
  return l.latency_s + bytes * shared_by / l.bandwidth;
}

/// Seconds of a ring all-reduce of `bytes` over `ranks`: 2 (ranks - 1) messages of bytes / ranks.
inline double all_reduce_s(const link& l, double bytes, std::uint32_t ranks, double shared_by = 1) {
  return ranks < 2 ? 0 : 2.0 * (ranks - 1) * transfer_s(l, bytes / ranks, shared_by);
}

/// Seconds of a kernel: the longer of its compute time and its memory time.
inline double kernel_s(const machine& m, double flops, double bytes) {
  return std::max(flops / (m.tflops * 1e12), bytes / (m.memory_gb_s * 1e9)) / m.efficiency;
}

}  // namespace rrfp::study

#include <rrfp/study/machine.hpp>

#include <algorithm>

namespace rrfp::study {

double transfer_s(const link& l, double bytes, double shared_by) {
  return l.latency_s + bytes * shared_by / l.bandwidth;
}

double all_reduce_s(const link& l, double bytes, std::uint32_t ranks, double shared_by) {
  if (ranks < 2) return 0;
  return 2.0 * (ranks - 1) * transfer_s(l, bytes / ranks, shared_by);
}

double kernel_s(const machine& m, double flops, double bytes) {
  return std::max(flops / (m.tflops * 1e12), bytes / (m.memory_gb_s * 1e9)) / m.efficiency;
}

}  // namespace rrfp::study

#include <rrfp/workload/machine.hpp>

#include <algorithm>
#include <cmath>

namespace rrfp::workload {

machine rtx_4090_cluster() {
  machine m;
  m.each = {"RTX 4090", 165.2e12, 1008e9, std::uint64_t{24} << 30};
  m.within = {16e9, 10e-6};
  m.between = {25e9, 5e-6};
  return m;
}

double transfer_s(const link& l, double bytes, double shared_by) {
  return l.latency_s + bytes * shared_by / l.bandwidth;
}

double all_reduce_s(const link& l, double bytes, std::uint32_t ranks, double shared_by) {
  if (ranks < 2) return 0;
  return 2.0 * (ranks - 1) * transfer_s(l, bytes / ranks, shared_by);
}

double kernel_s(const machine& m, double flops, double bytes) {
  return std::max(flops / m.each.peak_flops, bytes / m.each.memory_bandwidth) / m.efficiency;
}

status validate(const machine& m) {
  const auto positive = [](const char* what, double x) -> status {
    if (std::isfinite(x) && x > 0) return success();
    return error{std::string{what} + ": expected a finite number > 0, got " + std::to_string(x)};
  };
  if (auto ok = positive("peak_flops", m.each.peak_flops); !ok) return ok;
  if (auto ok = positive("memory_bandwidth", m.each.memory_bandwidth); !ok) return ok;
  if (auto ok = positive("within.bandwidth", m.within.bandwidth); !ok) return ok;
  if (auto ok = positive("between.bandwidth", m.between.bandwidth); !ok) return ok;
  if (m.group == 0) return error{"group: expected an integer >= 1, got 0"};
  if (!(m.efficiency > 0 && m.efficiency <= 1))
    return error{"efficiency: expected a number in (0, 1], got " + std::to_string(m.efficiency)};
  if (!(std::isfinite(m.layer_s) && m.layer_s >= 0))
    return error{"layer_s: expected a finite number >= 0, got " + std::to_string(m.layer_s)};
  return success();
}

}  // namespace rrfp::workload

/// The state that the parts of the transport share: options, memory, counters and sinks.
#pragma once

#include <atomic>

#include <rrfp/actors/ucx_transport.hpp>

#include "../sink_table.hpp"
#include "byte_exchange.hpp"
#include "slab_pool.hpp"

namespace rrfp::actors::ucx {

/// Written by the progress thread, read by any thread.
struct live_counters {
  using number = std::atomic<std::uint64_t>;

  number sent = 0;
  number sent_bytes = 0;
  number received = 0;
  number received_bytes = 0;
  number dropped_duplicate = 0;
  number dropped_stale = 0;
  number dropped_invalid = 0;
  number dropped_unreachable = 0;
  number announced = 0;
  number inflight_bytes = 0;
  number inflight_bytes_peak = 0;

  /// Each counter has one writer; readers need no order between counters.
  static void add(number& n, std::uint64_t amount = 1) {
    n.store(n.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  static void subtract(number& n, std::uint64_t amount = 1) {
    n.store(n.load(std::memory_order_relaxed) - amount, std::memory_order_relaxed);
  }
};

struct node_state {
  explicit node_state(ucx_options o)
      : options(std::move(o)),
        pool(slab_pool::make(options.cached_bytes_max, options.memory)),
        exchange(pool, options.unexpected_bytes_max) {}

  const ucx_options options;
  const std::shared_ptr<slab_pool> pool;
  sink_table sinks;
  byte_exchange exchange;
  live_counters counters;
};

}  // namespace rrfp::actors::ucx

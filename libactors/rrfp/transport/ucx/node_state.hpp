/// The state that the parts of the transport share: options, memory, sinks, decisions and counters.
#pragma once

#include <array>
#include <atomic>
#include <bit>

#include <rrfp/core/transport_core.hpp>
#include <rrfp/transport/sink_table.hpp>
#include <rrfp/transport/slab_pool.hpp>
#include <rrfp/transport/ucx_transport.hpp>

#include "byte_exchange.hpp"

namespace rrfp::actors::ucx {

using namespace messaging;

/// Written by the thread that drives UCX, read by any thread.
class live_counts {
 public:
  /// Readers need no order between counters.
  void publish(const transport_counts& now) {
    const auto values = std::bit_cast<numbers>(now);
    for (std::size_t i = 0; i < count; ++i) live_[i].store(values[i], std::memory_order_relaxed);
  }
  transport_counts read() const {
    numbers values;
    for (std::size_t i = 0; i < count; ++i) values[i] = live_[i].load(std::memory_order_relaxed);
    return std::bit_cast<transport_counts>(values);
  }

 private:
  static constexpr std::size_t count = sizeof(transport_counts) / sizeof(std::uint64_t);
  using numbers = std::array<std::uint64_t, count>;

  std::array<std::atomic<std::uint64_t>, count> live_{};
};

/// What the transport calls on the progress thread, which alone uses them; see ucx_transport.
struct program_calls {
  std::function<void(node_id, std::string)> failed;
  ucx_transport::device_allocator allocate;
  ucx_transport::actor_message_reader read_actor_message;
};

struct node_state {
  explicit node_state(ucx_options o)
      : options(std::move(o)),
        pool(slab_pool::make(options.cached_bytes_max, options.memory)),
        exchange(pool, options.unexpected_bytes_max),
        core({options.node, options.job_token, options.epoch, options.eager_bytes_max,
              options.message_bytes_max, options.inflight_bytes_max,
              options.actor_message_bytes_max}) {}

  void publish() { counts.publish(core.counts()); }

  const ucx_options options;
  const std::shared_ptr<slab_pool> pool;
  sink_table sinks;
  byte_exchange exchange;
  transport_core core;  ///< used only by the thread that drives UCX
  live_counts counts;
  program_calls calls;
  std::atomic<bool> stopping = false;  ///< from then on no failure is reported
};

}  // namespace rrfp::actors::ucx

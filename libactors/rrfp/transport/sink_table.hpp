/// The sink of each bound address; used by the transports that deliver messages.
#pragma once

#include <map>
#include <mutex>
#include <shared_mutex>

#include <rrfp/base/check.hpp>
#include <rrfp/core/transport_frames.hpp>
#include <rrfp/transport/transport.hpp>

namespace rrfp::actors {

/// Thread-safe.
class sink_table {
 public:
  /// An address is bound once. After close() sinks are dropped, because a sink may keep an actor
  /// alive.
  void bind(rank_address address, message_sink sink) {
    const std::unique_lock lock{mutex_};
    if (closed_) return;
    RRFP_CHECK(sinks_.emplace(address, std::move(sink)).second, "an address is bound once");
  }

  bool is_bound(const rank_address& address) const {
    const std::shared_lock lock{mutex_};
    return sinks_.contains(address);
  }

  /// Returns done, closed or not_bound.
  messaging::delivery deliver(message m) {
    const std::shared_lock lock{mutex_};
    if (closed_) return messaging::delivery::closed;
    const auto found = sinks_.find(m.header.to);
    if (found == sinks_.end()) return messaging::delivery::not_bound;
    found->second(std::move(m));
    return messaging::delivery::done;
  }

  /// Removes all sinks; none is called after it has returned.
  void close() {
    // A sink may hold the last reference to its actor, and the actor's destructor may wait for a
    // thread that sends. So sinks are destroyed outside the lock.
    std::map<rank_address, message_sink> dropped;
    const std::unique_lock lock{mutex_};
    closed_ = true;
    dropped.swap(sinks_);
  }

 private:
  mutable std::shared_mutex mutex_;
  std::map<rank_address, message_sink> sinks_;
  bool closed_ = false;
};

}  // namespace rrfp::actors

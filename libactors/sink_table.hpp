/// Who takes the messages for which address, shared by the transports that deliver.
#pragma once

#include <map>
#include <shared_mutex>

#include <rrfp/actors/transport.hpp>
#include <rrfp/schedule/check.hpp>

namespace rrfp::actors {

/// Thread-safe.
class sink_table {
 public:
  /// An address is bound once; after close() nothing is kept, for a sink may keep an actor alive.
  void bind(rank_address address, message_sink sink) {
    const std::unique_lock lock{mutex_};
    if (closed_) return;
    RRFP_CHECK(sinks_.emplace(address, std::move(sink)).second, "an address is bound once");
  }

  bool is_bound(const rank_address& address) const {
    const std::shared_lock lock{mutex_};
    return sinks_.contains(address);
  }

  enum class outcome : std::uint8_t { delivered, not_bound, closed };

  /// Takes `m` only if it is delivered.
  outcome deliver(message& m) {
    const std::shared_lock lock{mutex_};
    if (closed_) return outcome::closed;
    const auto found = sinks_.find(m.header.to);
    if (found == sinks_.end()) return outcome::not_bound;
    found->second(std::move(m));
    return outcome::delivered;
  }

  /// No sink is called any more once it has returned.
  void close() {
    // A sink may hold the last reference to its actor, whose end may wait for a thread that sends:
    // sinks die outside the lock.
    std::map<rank_address, message_sink> dying;
    const std::unique_lock lock{mutex_};
    closed_ = true;
    dying.swap(sinks_);
  }

 private:
  mutable std::shared_mutex mutex_;
  std::map<rank_address, message_sink> sinks_;
  bool closed_ = false;
};

}  // namespace rrfp::actors

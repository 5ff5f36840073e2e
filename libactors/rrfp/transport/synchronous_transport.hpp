/// Synchronous sends, as in frameworks with fixed schedules: a message leaves when its receiver has
/// posted a receive, and a callback notifies the sender when it has arrived. Between processes both
/// are messages themselves: one to the sender when the receive is posted, one after the arrival.
/// Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include <rrfp/transport/transport.hpp>

#include "message_key.hpp"

namespace rrfp::actors {

class synchronous_transport final : public transport {
 public:
  explicit synchronous_transport(std::unique_ptr<transport> inner) : inner_(std::move(inner)) {}

  /// All ranks of this process are bound before the first send.
  void bind(rank_address address, message_sink sink) override;
  /// Sends at once, without a posted receive; not the input of a task of another process.
  void send(message m) override { inner_->send(std::move(m)); }
  bool takes_device_memory(const rank_address& to) const override {
    return inner_->takes_device_memory(to);
  }
  void close() override;

  /// Sends `m` once post_receive() was called for it. `arrived` is called after the receiver's
  /// sink, on a thread of the transport.
  void send_synchronous(message m, std::function<void()> arrived);
  /// Once for each message.
  void post_receive(const message_header& header);

 private:
  struct transfer {
    bool posted = false;
    std::optional<message> held;
    std::function<void()> arrived;
  };

  bool is_here(const rank_address& a);
  /// Tells the sender of `of`.
  void signal(payload kind, const message_header& of);
  void deliver(message m, const message_sink& sink);
  /// At the sender.
  void posted(const message_key& key);
  void received(const message_key& key);

  const std::unique_ptr<transport> inner_;
  std::mutex mutex_;
  std::set<rank_address> here_;
  std::map<message_key, transfer> transfers_;
};

}  // namespace rrfp::actors

/// Send and receive that meet, as in frameworks with fixed schedules: a message leaves once its
/// receiver has posted, and its sender hears when it has arrived. In one process; thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include <rrfp/actors/transport.hpp>

#include "message_key.hpp"

namespace rrfp::actors {

class rendezvous final : public transport {
 public:
  explicit rendezvous(std::unique_ptr<transport> inner) : inner_(std::move(inner)) {}

  void bind(rank_address address, message_sink sink) override;
  /// Waits for nobody.
  void send(message m) override { inner_->send(std::move(m)); }
  bool takes_device_memory(const rank_address& to) const override {
    return inner_->takes_device_memory(to);
  }
  void close() override;

  /// Sends `m` once receive() was called for it; `arrived` is called after the receiver's sink, by
  /// whoever called that.
  void send_to_meet(message m, std::function<void()> arrived);
  /// Once for each message; `from` of the header does not count.
  void receive(const message_header& what);

 private:
  struct meeting {
    bool posted = false;
    std::optional<message> held;
    std::function<void()> arrived;
  };

  const std::unique_ptr<transport> inner_;
  std::mutex mutex_;
  std::map<message_key, meeting> meetings_;
};

}  // namespace rrfp::actors

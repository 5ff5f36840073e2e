/// Send and receive that meet, as in frameworks with fixed schedules: a message leaves once its
/// receiver has posted, and its sender hears when it has arrived. In one process; thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>

#include <rrfp/actors/transport.hpp>

namespace rrfp::actors {

class rendezvous final : public transport {
 public:
  explicit rendezvous(std::unique_ptr<transport> inner) : inner_(std::move(inner)) {}

  void bind(rank_address address, message_sink sink) override;
  /// Waits for nobody.
  void send(message m) override { inner_->send(std::move(m)); }
  void close() override;

  /// Sends `m` once receive() was called for it; `arrived` is called after the receiver's sink, by
  /// whoever called that.
  void send_to_meet(message m, std::function<void()> arrived);
  /// Once for each message; `from` of the header does not count.
  void receive(const message_header& what);

 private:
  using key = std::tuple<step_id, payload, microbatch_id, chunk_id, rank_address>;
  static key key_of(const message_header& h) { return {h.step, h.what, h.mb, h.chunk, h.to}; }

  struct meeting {
    bool posted = false;
    std::optional<message> held;
    std::function<void()> arrived;
  };

  const std::unique_ptr<transport> inner_;
  std::mutex mutex_;
  std::map<key, meeting> meetings_;
};

}  // namespace rrfp::actors

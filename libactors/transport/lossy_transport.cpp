#include <map>
#include <mutex>

#include <rrfp/actors/transport.hpp>

#include "message_key.hpp"

namespace rrfp::actors {

namespace {

class lossy_transport final : public transport {
 public:
  lossy_transport(std::unique_ptr<transport> inner, fate_of_attempt fate)
      : inner_(std::move(inner)), fate_(std::move(fate)) {}

  void bind(rank_address address, message_sink sink) override {
    inner_->bind(address, std::move(sink));
  }

  void send(message m) override {
    const auto fate = fate_(m.header, count(m.header));
    if (fate.twice) inner_->send(m);
    if (!fate.lost) inner_->send(std::move(m));
  }

  bool takes_device_memory(const rank_address& to) const override {
    return inner_->takes_device_memory(to);
  }

  void close() override { inner_->close(); }

 private:
  /// Number of earlier attempts to send this message.
  std::uint32_t count(const message_header& h) {
    const std::lock_guard lock{mutex_};
    forget_before(h.step);
    return attempts_[key_of(h)]++;
  }

  /// Messages of two steps back cannot be in flight: steps end in order.
  void forget_before(step_id step) {
    while (!attempts_.empty() &&
           std::get<step_id>(attempts_.begin()->first).value() + 1 < step.value())
      attempts_.erase(attempts_.begin());
  }

  const std::unique_ptr<transport> inner_;
  const fate_of_attempt fate_;
  std::mutex mutex_;
  std::map<message_key, std::uint32_t> attempts_;
};

}  // namespace

std::unique_ptr<transport> make_lossy_transport(std::unique_ptr<transport> inner,
                                                fate_of_attempt fate) {
  return std::make_unique<lossy_transport>(std::move(inner), std::move(fate));
}

}  // namespace rrfp::actors

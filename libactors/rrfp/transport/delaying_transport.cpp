#include <chrono>
#include <mutex>
#include <optional>

#include <rrfp/transport/transport.hpp>

#include "timer_thread.hpp"

namespace rrfp::actors {

namespace {

class delaying_transport final : public transport {
 public:
  delaying_transport(std::unique_ptr<transport> inner, link_delay delay)
      : inner_(std::move(inner)), delay_(std::move(delay)), timer_(std::in_place, "links") {}

  ~delaying_transport() override { close(); }

  void bind(rank_address address, message_sink sink) override {
    inner_->bind(address, std::move(sink));
  }

  void send(message m) override {
    const std::chrono::duration<double, std::milli> held{delay_(m.header)};
    if (held.count() <= 0) return inner_->send(std::move(m));
    const auto due = timer_thread::clock::now() +
                     std::chrono::duration_cast<timer_thread::clock::duration>(held);
    // std::function requires a copyable callable; share the message instead of copying it.
    const auto waiting = std::make_shared<message>(std::move(m));
    const std::lock_guard lock{mutex_};
    if (!closed_) timer_->at(due, [this, waiting] { inner_->send(std::move(*waiting)); });
  }

  bool takes_device_memory(const rank_address& to) const override {
    return inner_->takes_device_memory(to);
  }

  void close() override {
    {
      const std::lock_guard lock{mutex_};
      closed_ = true;
    }
    timer_.reset();
    inner_->close();
  }

 private:
  const std::unique_ptr<transport> inner_;
  const link_delay delay_;
  std::mutex mutex_;
  bool closed_ = false;
  std::optional<timer_thread> timer_;
};

}  // namespace

std::unique_ptr<transport> make_delaying_transport(std::unique_ptr<transport> inner,
                                                   link_delay delay) {
  return std::make_unique<delaying_transport>(std::move(inner), std::move(delay));
}

}  // namespace rrfp::actors

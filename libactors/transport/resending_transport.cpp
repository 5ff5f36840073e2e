#include <map>
#include <mutex>
#include <optional>

#include <rrfp/actors/transport.hpp>

#include "message_key.hpp"
#include "timer_thread.hpp"

namespace rrfp::actors {

namespace {

class resending_transport final : public transport {
 public:
  resending_transport(std::unique_ptr<transport> inner, std::chrono::nanoseconds after,
                      std::function<void()> on_resend)
      : inner_(std::move(inner)),
        after_(after),
        on_resend_(std::move(on_resend)),
        timer_(std::in_place, "resends") {}

  ~resending_transport() override { close(); }

  void bind(rank_address address, message_sink sink) override {
    inner_->bind(address, [this, sink = std::move(sink)](message m) {
      if (is_first(m.header)) sink(std::move(m));
    });
  }

  void send(message m) override {
    const auto header = m.header;
    {
      const std::lock_guard lock{mutex_};
      if (closed_) return;
      forget_before(header.step);
      in_flight_[key_of(header)] = m;
    }
    attempt(std::move(m), timer_thread::clock::now());
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
  void attempt(message m, timer_thread::clock::time_point now) {
    {
      const std::lock_guard lock{mutex_};
      if (closed_) return;
      const auto due = now + after_;
      timer_->at(due, [this, key = key_of(m.header), due] {
        auto again = not_arrived(key);
        if (!again) return;
        if (on_resend_) on_resend_();
        attempt(std::move(*again), due);
      });
    }
    inner_->send(std::move(m));
  }

  std::optional<message> not_arrived(const message_key& key) {
    const std::lock_guard lock{mutex_};
    const auto at = in_flight_.find(key);
    if (closed_ || at == in_flight_.end() || !at->second) return std::nullopt;
    return at->second;
  }

  /// Whether the message has not arrived before.
  bool is_first(const message_header& h) {
    const std::lock_guard lock{mutex_};
    const auto at = in_flight_.find(key_of(h));
    if (at == in_flight_.end() || !at->second) return false;
    at->second.reset();
    return true;
  }

  /// Messages of two steps back cannot be in flight: steps end in order.
  void forget_before(step_id step) {
    while (!in_flight_.empty() &&
           std::get<step_id>(in_flight_.begin()->first).value() + 1 < step.value())
      in_flight_.erase(in_flight_.begin());
  }

  const std::unique_ptr<transport> inner_;
  const std::chrono::nanoseconds after_;
  const std::function<void()> on_resend_;
  std::mutex mutex_;
  /// The message, or nothing once it has arrived.
  std::map<message_key, std::optional<message>> in_flight_;
  bool closed_ = false;
  std::optional<timer_thread> timer_;
};

}  // namespace

std::unique_ptr<transport> make_resending_transport(std::unique_ptr<transport> inner,
                                                    std::chrono::nanoseconds after,
                                                    std::function<void()> on_resend) {
  return std::make_unique<resending_transport>(std::move(inner), after, std::move(on_resend));
}

}  // namespace rrfp::actors

#include "synchronous_transport.hpp"

#include <utility>

#include <rrfp/base/check.hpp>

namespace rrfp::actors {

void synchronous_transport::bind(rank_address address, message_sink sink) {
  inner_->bind(address, [this, sink = std::move(sink)](message m) {
    std::function<void()> arrived;
    {
      const std::lock_guard lock{mutex_};
      if (auto done = transfers_.extract(key_of(m.header)))
        arrived = std::move(done.mapped().arrived);
    }
    sink(std::move(m));
    if (arrived) arrived();
  });
}

void synchronous_transport::close() {
  inner_->close();
  const std::lock_guard lock{mutex_};
  transfers_.clear();
}

void synchronous_transport::send_synchronous(message m, std::function<void()> arrived) {
  {
    const std::lock_guard lock{mutex_};
    auto& pending = transfers_[key_of(m.header)];
    RRFP_CHECK(!pending.arrived, "a message is sent once");
    pending.arrived = std::move(arrived);
    if (!pending.posted) {
      pending.held = std::move(m);
      return;
    }
  }
  inner_->send(std::move(m));
}

void synchronous_transport::post_receive(const message_header& header) {
  std::optional<message> held;
  {
    const std::lock_guard lock{mutex_};
    auto& pending = transfers_[key_of(header)];
    RRFP_CHECK(!std::exchange(pending.posted, true), "a receive is posted once");
    held = std::exchange(pending.held, std::nullopt);
  }
  if (held) inner_->send(std::move(*held));
}

}  // namespace rrfp::actors

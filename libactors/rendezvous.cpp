#include "rendezvous.hpp"

#include <utility>

#include <rrfp/schedule/check.hpp>

namespace rrfp::actors {

void rendezvous::bind(rank_address address, message_sink sink) {
  inner_->bind(address, [this, sink = std::move(sink)](message m) {
    std::function<void()> arrived;
    {
      const std::lock_guard lock{mutex_};
      if (auto met = meetings_.extract(key_of(m.header))) arrived = std::move(met.mapped().arrived);
    }
    sink(std::move(m));
    if (arrived) arrived();
  });
}

void rendezvous::close() {
  inner_->close();
  const std::lock_guard lock{mutex_};
  meetings_.clear();
}

void rendezvous::send_to_meet(message m, std::function<void()> arrived) {
  {
    const std::lock_guard lock{mutex_};
    auto& meets = meetings_[key_of(m.header)];
    RRFP_CHECK(!meets.arrived, "a message is sent once");
    meets.arrived = std::move(arrived);
    if (!meets.posted) {
      meets.held = std::move(m);
      return;
    }
  }
  inner_->send(std::move(m));
}

void rendezvous::receive(const message_header& what) {
  std::optional<message> held;
  {
    const std::lock_guard lock{mutex_};
    auto& meets = meetings_[key_of(what)];
    RRFP_CHECK(!std::exchange(meets.posted, true), "a receive is posted once");
    held = std::exchange(meets.held, std::nullopt);
  }
  if (held) inner_->send(std::move(*held));
}

}  // namespace rrfp::actors

#include "synchronous_transport.hpp"

#include <utility>

#include <rrfp/base/check.hpp>

namespace rrfp::actors {

namespace {

struct signal_kinds {
  payload input;
  payload posted;
  payload received;
};
constexpr signal_kinds kinds[] = {
    {payload::activation, payload::activation_posted, payload::activation_received},
    {payload::gradient, payload::gradient_posted, payload::gradient_received}};

const signal_kinds& kinds_of(payload input) {
  return input == payload::activation ? kinds[0] : kinds[1];
}

/// The message that a signal is about.
message_key key_of_signal(const message_header& h, payload input) {
  return {h.step, input, h.mb, h.chunk, h.from};
}

}  // namespace

void synchronous_transport::bind(rank_address address, message_sink sink) {
  {
    const std::lock_guard lock{mutex_};
    here_.insert(address);
  }
  inner_->bind(address, [this, sink = std::move(sink)](message m) { deliver(std::move(m), sink); });
}

void synchronous_transport::deliver(message m, const message_sink& sink) {
  const auto header = m.header;
  for (const auto& k : kinds) {
    if (header.kind == k.posted) return posted(key_of_signal(header, k.input));
    if (header.kind == k.received) return received(key_of_signal(header, k.input));
  }
  sink(std::move(m));
  if (is_here(header.from))
    received(key_of(header));
  else if (is_input(header.kind))
    signal(kinds_of(header.kind).received, header);
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
  if (is_here(header.from))
    posted(key_of(header));
  else
    signal(kinds_of(header.kind).posted, header);
}

bool synchronous_transport::is_here(const rank_address& a) {
  const std::lock_guard lock{mutex_};
  return here_.contains(a);
}

void synchronous_transport::signal(payload kind, const message_header& of) {
  inner_->send(
      {{kind, of.step, of.mb, of.chunk, of.to, of.from}, make_host_buffer(dtype::uint8, {0})});
}

void synchronous_transport::posted(const message_key& key) {
  std::optional<message> held;
  {
    const std::lock_guard lock{mutex_};
    auto& pending = transfers_[key];
    RRFP_CHECK(!std::exchange(pending.posted, true), "a receive is posted once");
    held = std::exchange(pending.held, std::nullopt);
  }
  if (held) inner_->send(std::move(*held));
}

void synchronous_transport::received(const message_key& key) {
  std::function<void()> arrived;
  {
    const std::lock_guard lock{mutex_};
    if (auto done = transfers_.extract(key)) arrived = std::move(done.mapped().arrived);
  }
  if (arrived) arrived();
}

}  // namespace rrfp::actors

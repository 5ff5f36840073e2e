#include "directory.hpp"

#include <mutex>

#include <rrfp/base/check.hpp>

#include "message_ranges.hpp"

namespace rrfp::actors {

namespace {

error garbled(const std::string& why) { return {why, error_kind::failed}; }

template <class Message>
status read(const char* name, decoder& in, const message_ranges& run, const caf::actor& to) {
  Message m;
  in(m);
  if (!in.complete()) return garbled(std::string{name} + ": its members do not have this size");
  if (auto fits = check_ranges(run, m); !fits) return within(name, fits.failure());
  post(to, std::move(m));
  return success();
}

status read(message_code code, decoder& in, const message_ranges& run, const caf::actor& to) {
  switch (code) {
#define RRFP_READ(message) \
  case message_code::message: return read<message>(#message, in, run, to);
    RRFP_MESSAGES(RRFP_READ)
#undef RRFP_READ
  }
  return garbled("no message has code " + std::to_string(static_cast<unsigned>(code)));
}

}  // namespace

encoder actor_ref::begin_message() const {
  RRFP_CHECK(through_ != nullptr, "a message needs a receiver");
  encoder message;
  auto to = to_;
  message(to);
  return message;
}

void actor_ref::send(encoder message) const { through_->send_(node_, message.take()); }

void directory::bind(const actor_address& address, caf::actor a) {
  const std::unique_lock lock{mutex_};
  const bool is_new = actors_.emplace(address, std::move(a)).second;
  RRFP_CHECK(is_new, "an address is bound once");
}

actor_ref directory::find(const actor_address& address) const {
  {
    const std::shared_lock lock{mutex_};
    if (const auto found = actors_.find(address); found != actors_.end()) return found->second;
  }
  constexpr auto rule = "an actor of this node is bound before it is used";
  RRFP_CHECK(send_ && node_of_, rule);
  const auto node = address.what == actor_kind::job ? run_.leader : node_of_(address.at);
  RRFP_CHECK(node != here_, rule);
  return {*this, node, address};
}

actor_ref directory::node(node_id n) const {
  if (n == here_) return find({actor_kind::node});
  return {*this, n, {actor_kind::node}};
}

status directory::deliver(std::string_view message) const {
  decoder in{message};
  actor_address address;
  message_code code{};
  in(address, code);
  caf::actor to;
  {
    const std::shared_lock lock{mutex_};
    if (closed_) return success();
    if (const auto found = actors_.find(address); found != actors_.end()) to = found->second;
  }
  if (!to) return garbled("its receiver is not on this node");
  return read(code, in, run_, to);
}

void directory::close() {
  // Destroyed outside the lock: the destructor of an actor may call anything.
  std::map<actor_address, caf::actor> dropped;
  const std::unique_lock lock{mutex_};
  dropped.swap(actors_);
  closed_ = true;
}

}  // namespace rrfp::actors

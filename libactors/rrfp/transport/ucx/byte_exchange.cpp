#include "byte_exchange.hpp"

#include <algorithm>
#include <cstring>

#include <rrfp/transport/pause.hpp>

namespace rrfp::actors::ucx {

namespace {

/// About the latency of a reply over shared memory; longer waits sleep.
constexpr std::chrono::microseconds receive_spin{30};

error too_long(std::size_t room, std::size_t got) {
  return {"a rank channel expected at most " + std::to_string(room) + " bytes, got " +
          std::to_string(got)};
}

constexpr const char* transport_closed = "the transport is closed";

/// The cost of a kept message towards the limit; an empty one costs something, too.
std::size_t cost_of(std::size_t bytes) { return bytes + 64; }

}  // namespace

bool byte_mailbox::arrive(rank_id from, std::uint64_t tag, std::span<const std::byte> data,
                          slab holder) {
  const std::lock_guard lock{mutex_};
  if (closed_) return true;
  if (auto* const w = take_waiting({from, tag})) {
    if (data.size() > w->into.size()) {
      settle(*w, too_long(w->into.size(), data.size()));
    } else {
      if (!data.empty()) std::memcpy(w->into.data(), data.data(), data.size());
      w->bytes = data.size();
      settle(*w, std::nullopt);
    }
    return true;
  }
  if (unexpected_bytes_ + cost_of(data.size()) > unexpected_bytes_max_) return false;
  if (holder.data() == nullptr) {
    holder = pool_->take(data.size());
    if (holder.data() == nullptr) return false;
    if (!data.empty()) std::memcpy(holder.data(), data.data(), data.size());
  }
  unexpected_bytes_ += cost_of(data.size());
  unexpected_[{from, tag}].push_back({std::move(holder), data.size()});
  return true;
}

result<std::optional<std::size_t>> byte_mailbox::receive(rank_id from, std::uint64_t tag,
                                                         std::span<std::byte> into,
                                                         std::chrono::milliseconds limit) {
  using length = std::optional<std::size_t>;
  const auto begun = clock::now();
  waiting mine{{from, tag}, into, 0, std::nullopt, false};
  {
    const std::lock_guard lock{mutex_};
    if (auto found = take_arrived(mine.wanted)) {
      if (found->bytes > into.size()) return too_long(into.size(), found->bytes);
      if (found->bytes > 0) std::memcpy(into.data(), found->data.data(), found->bytes);
      return length{found->bytes};
    }
    if (closed_) return error{*closed_};
    if (const auto* const why = ending_of(from)) return error{*why};
    waiting_.push_back(&mine);
  }
  while (!mine.settled.load(std::memory_order_acquire)) {
    const auto waited = clock::now() - begun;
    if (waited > receive_spin) break;
    pause(waited);
  }
  if (!mine.settled.load(std::memory_order_acquire)) {
    std::unique_lock lock{mutex_};
    ++sleeping_;
    const auto came = wake_.wait_until(lock, begun + limit, [&] { return mine.settled.load(); });
    --sleeping_;
    if (!came) {
      waiting_.remove(&mine);
      return length{};
    }
  }
  if (mine.failed) return *mine.failed;
  return length{mine.bytes};
}

std::optional<byte_mailbox::arrived> byte_mailbox::take_arrived(const key& wanted) {
  const auto found = unexpected_.find(wanted);
  if (found == unexpected_.end()) return std::nullopt;
  auto taken = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) unexpected_.erase(found);
  unexpected_bytes_ -= cost_of(taken.bytes);
  return taken;
}

byte_mailbox::waiting* byte_mailbox::take_waiting(const key& wanted) {
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const waiting* w) { return w->wanted == wanted; });
  if (found == waiting_.end()) return nullptr;
  auto* const w = *found;
  waiting_.erase(found);
  return w;
}

void byte_mailbox::settle(waiting& w, std::optional<error> failed) {
  w.failed = std::move(failed);
  w.settled.store(true, std::memory_order_release);
  if (sleeping_ > 0) wake_.notify_all();
}

const std::string* byte_mailbox::ending_of(rank_id from) const {
  if (from.value() >= nodes_.size()) return nullptr;
  const auto found = ended_.find(nodes_[from.value()]);
  return found == ended_.end() ? nullptr : &found->second;
}

void byte_mailbox::set_members(std::vector<node_id> nodes,
                               const std::map<node_id, std::string>& ended) {
  const std::lock_guard lock{mutex_};
  nodes_ = std::move(nodes);
  ended_ = ended;
}

void byte_mailbox::end(node_id node, const std::string& why) {
  const std::lock_guard lock{mutex_};
  ended_.emplace(node, why);
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    auto* const w = *at;
    const auto* const ending = ending_of(w->wanted.first);
    if (ending == nullptr) {
      ++at;
      continue;
    }
    at = waiting_.erase(at);
    settle(*w, error{*ending});
  }
}

void byte_mailbox::close(const std::string& why) {
  const std::lock_guard lock{mutex_};
  if (!closed_) closed_ = why;
  for (auto* const w : waiting_) settle(*w, error{*closed_});
  waiting_.clear();
}

std::shared_ptr<byte_mailbox> byte_exchange::mailbox(std::uint32_t group, rank_id member) {
  const std::lock_guard lock{mutex_};
  const auto found = mailboxes_.find({group, member});
  if (found != mailboxes_.end()) return found->second;
  if (mailboxes_.size() >= mailboxes_max) return nullptr;
  auto made = std::make_shared<byte_mailbox>(pool_, unexpected_bytes_max_);
  if (closed_) made->close(transport_closed);
  mailboxes_.emplace(std::pair{group, member}, made);
  return made;
}

std::shared_ptr<byte_mailbox> byte_exchange::open(std::uint32_t group, rank_id member,
                                                  std::vector<node_id> nodes) {
  auto box = mailbox(group, member);
  RRFP_CHECK(box != nullptr, "a node must have at most 4096 members of rank groups");
  const std::lock_guard lock{mutex_};
  box->set_members(std::move(nodes), ended_);
  return box;
}

void byte_exchange::end(node_id node, const std::string& why) {
  const std::lock_guard lock{mutex_};
  ended_.emplace(node, why);
  for (const auto& [_, box] : mailboxes_) box->end(node, why);
}

void byte_exchange::close() {
  const std::lock_guard lock{mutex_};
  closed_ = true;
  for (const auto& [_, box] : mailboxes_) box->close(transport_closed);
}

}  // namespace rrfp::actors::ucx

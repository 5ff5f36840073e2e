#include <rrfp/core/transport_core.hpp>

#include <algorithm>

#include <rrfp/base/enum_names.hpp>
#include <rrfp/base/step_name.hpp>

namespace rrfp::messaging {

namespace {

std::string name_of(node_id node) { return "node " + std::to_string(node.value()); }

std::string name_of(const rank_address& a) {
  return "stage " + std::to_string(a.stage.value()) + " rank " + std::to_string(a.rank.value()) +
         " of replica " + std::to_string(a.replica.value());
}

std::string name_of(payload kind) {
  return std::string{name_in({"an activation", "a gradient", "a tied gradient", "a signal",
                              "a sum of gradients", "a piece of a copy"},
                             kind)};
}

std::string name_of(const tensor_header& h) {
  return name_of(h.message.kind) + " of " + to_string(h.message.step) + ", microbatch " +
         std::to_string(h.message.mb.value()) + ", chunk " +
         std::to_string(h.message.chunk.value()) + " (" + name_of(h.message.from) + " -> " +
         name_of(h.message.to) + ", " + std::to_string(h.data_bytes) + " bytes)";
}

std::string name_of(const bytes_header& h) {
  return "a channel message of group " + std::to_string(h.group) + ", rank " +
         std::to_string(h.from.value()) + " -> " + std::to_string(h.to.value()) + ", tag " +
         std::to_string(h.tag) + " (" + std::to_string(h.data_bytes) + " bytes)";
}

std::string name_of(const actor_message_header& h) {
  return "actor message " + std::to_string(h.sequence) + " (" + std::to_string(h.data_bytes) +
         " bytes)";
}

std::uint64_t bytes_of(const any_header& any) {
  return std::visit([](const auto& h) { return h.data_bytes; }, any);
}

node_id sender_of(const any_header& any) {
  return std::visit([](const auto& h) { return h.from_node; }, any);
}

}  // namespace

// ---- nodes

status transport_core::may_connect(node_id node) const {
  const auto found = peers_.find(node);
  if (found == peers_.end()) return success();
  const auto& p = found->second;
  return error{name_of(node) + (p.state == peer_state::connected ? " is connected already"
                                                                 : " has ended: " + p.why)};
}

void transport_core::connected(node_id node, void* link) { peers_[node].link = link; }

bool transport_core::has_failed(node_id node) const {
  const auto found = peers_.find(node);
  return found != peers_.end() && found->second.state == peer_state::failed;
}

void transport_core::fail(node_id node, const std::string& why) {
  end(node, peer_state::failed, name_of(node) + ": " + why);
}

void transport_core::broke(node_id node, const std::string& why) {
  fail(node, why);
  peers_[node].is_broken = true;
  has_ends_ = true;
}

void transport_core::end(node_id node, peer_state how, std::string why) {
  // A node that this one never connected to may fail, too: it may have connected to this one.
  auto& p = peers_[node];
  if (p.state != peer_state::connected) return;
  p.state = how;
  p.why = std::move(why);
  p.is_unreported = true;
  has_ends_ = true;
}

std::vector<node_id> transport_core::connected() const {
  std::vector<node_id> nodes;
  for (const auto& [node, p] : peers_)
    if (p.state == peer_state::connected && p.link != nullptr) nodes.push_back(node);
  return nodes;
}

std::vector<node_end> transport_core::settle() {
  std::vector<node_end> ends;
  if (!std::exchange(has_ends_, false)) return ends;
  for (auto& [node, p] : peers_) {
    const bool has_failed = p.state == peer_state::failed;
    auto* const broken = p.is_broken || has_failed ? std::exchange(p.link, nullptr) : nullptr;
    const bool is_new = std::exchange(p.is_unreported, false);
    if (broken != nullptr || is_new) ends.push_back({node, broken, is_new, has_failed, p.why});
  }
  return ends;
}

std::vector<void*> transport_core::close_links() {
  std::vector<void*> links;
  for (auto& [_, p] : peers_)
    if (p.link != nullptr) links.push_back(std::exchange(p.link, nullptr));
  return links;
}

// ---- sending

template <class Header>
transport_core::limit transport_core::limit_of(const Header&) const {
  if constexpr (std::is_same_v<Header, actor_message_header>)
    return {"actor_message_bytes_max", options_.actor_message_bytes_max};
  else
    return {"message_bytes_max", options_.message_bytes_max};
}

template <class Header>
bool transport_core::number(node_id to, Header& h) {
  if (const auto [name, bytes_max] = limit_of(h); h.data_bytes > bytes_max) {
    fail(to, "a message of " + std::to_string(h.data_bytes) + " bytes to it exceeds " + name +
                 ", " + std::to_string(bytes_max));
    return false;
  }
  stamp(h);
  if constexpr (std::is_same_v<Header, actor_message_header>)
    h.sequence = actor_messages_sent_[to]++;
  else
    h.sequence = sequences_[{h.message.from, h.message.to}]++;
  return true;
}

template <class Header>
chosen_link transport_core::link_for(node_id to, const Header& h) {
  // Without an end it would be waited for until the hang limit.
  if (!peers_.contains(to)) fail(to, "a message to a node that this one has not connected to");
  const auto by = link_to(to);
  if (by.link == nullptr) return by;
  ++counts_.sent;
  counts_.sent_bytes += h.data_bytes;
  return {by.link,
          !std::is_same_v<Header, actor_message_header> && h.data_bytes > options_.eager_bytes_max};
}

chosen_link transport_core::link_to(node_id to) {
  const auto found = peers_.find(to);
  if (found != peers_.end() && found->second.state == peer_state::connected &&
      found->second.link != nullptr)
    return {found->second.link};
  ++counts_.dropped_unreachable;
  return {};
}

// ---- receiving

void transport_core::arrived_undecodable() { ++counts_.dropped_invalid; }

template <class Header>
bool transport_core::is_current(const Header& h) const {
  return h.job_token == options_.job_token && h.epoch == options_.epoch;
}

template <class Header>
bool transport_core::is_fresh(const Header& h) {
  constexpr bool is_tensor = std::is_same_v<Header, tensor_header>;
  constexpr bool is_actor_message = std::is_same_v<Header, actor_message_header>;
  using enum sequence_window::verdict;
  auto found = fresh;  // bytes are not numbered
  if constexpr (is_tensor) found = windows_[{h.message.from, h.message.to}].take(h.sequence);
  if constexpr (is_actor_message) found = inboxes_[h.from_node].judge(h.sequence);
  switch (found) {
    case fresh: break;
    case duplicate: ++counts_.dropped_duplicate; return false;
    case too_far:
      const auto ahead_max = is_tensor ? sequence_window::window_max : ordered_inbox::ahead_max;
      fail(h.from_node, "a message was lost: one of the " + std::to_string(ahead_max) +
                            " before this one never arrived: " + name_of(h));
      return false;
  }
  if constexpr (is_actor_message) {
    const auto bytes_max = options_.actor_message_bytes_max;
    if (inboxes_[h.from_node].has_room(h.sequence, h.data_bytes, bytes_max)) return true;
    fail(h.from_node, "more than actor_message_bytes_max, " + std::to_string(bytes_max) +
                          ", waits for an earlier one that never arrived: " + name_of(h));
    return false;
  }
  return true;
}

std::vector<std::string> transport_core::in_order(const actor_message_header& h,
                                                  std::string bytes) {
  return inboxes_[h.from_node].take(h.sequence, std::move(bytes));
}

template <class Header>
disposition transport_core::arrived(const Header& h, std::uint64_t bytes, void* descriptor) {
  if (closed_) return disposition::drop;
  if (!is_current(h) || has_failed(h.from_node)) {
    ++counts_.dropped_stale;
    return disposition::drop;
  }
  if (const auto [name, bytes_max] = limit_of(h); h.data_bytes > bytes_max) {
    fail(h.from_node, std::string{"it sent more than "} + name + ", " + std::to_string(bytes_max) +
                          ": " + name_of(h));
    return disposition::drop;
  }
  if (h.data_bytes != bytes) {
    fail(h.from_node,
         "it announced another size than it sent, " + std::to_string(bytes) + ": " + name_of(h));
    return disposition::drop;
  }
  if (!is_fresh(h)) return disposition::drop;
  if (descriptor == nullptr) return disposition::deliver;
  if constexpr (std::is_constructible_v<any_header, const Header&>) {
    announced_.push_back({h, descriptor});
    ++counts_.announced;
    return disposition::keep;
  } else {
    fail(h.from_node, "it announced " + name_of(h));
    return disposition::drop;
  }
}

chosen_link transport_core::arrived(const disconnect_header& h) {
  if (!is_current(h)) {
    ++counts_.dropped_stale;
    return {};
  }
  if (h.is_answer) {
    answered_.insert(h.from_node);
    return {};
  }
  const auto answer = link_to(h.from_node);
  end(h.from_node, peer_state::left, name_of(h.from_node) + " has left the job");
  return answer;
}

std::optional<fetch_order> transport_core::next_fetch() {
  if (announced_.empty()) return std::nullopt;
  const auto bytes = bytes_of(announced_.front().header);
  if (counts_.inflight_bytes + bytes > options_.inflight_bytes_max) return std::nullopt;
  fetch_order next{announced_.front().header, announced_.front().descriptor};
  announced_.pop_front();
  --counts_.announced;
  if (has_failed(sender_of(next.header))) {
    ++counts_.dropped_stale;
    next.is_stale = true;
    return next;
  }
  ++fetching_;
  counts_.inflight_bytes += bytes;
  counts_.inflight_bytes_peak = std::max(counts_.inflight_bytes_peak, counts_.inflight_bytes);
  return next;
}

disposition transport_core::fetched(const any_header& any, const std::string& failure) {
  RRFP_CHECK(fetching_ > 0, "a fetch ends once");
  --fetching_;
  counts_.inflight_bytes -= bytes_of(any);
  const auto from = sender_of(any);
  if (closed_ || has_failed(from)) return disposition::drop;
  if (failure.empty()) return disposition::deliver;
  fail(from, "fetching " + std::visit([](const auto& h) { return name_of(h); }, any) +
                 " failed: " + failure);
  return disposition::drop;
}

template <class Header>
void transport_core::delivered(const Header& h, delivery how, const std::string& why) {
  switch (how) {
    case delivery::done:
      ++counts_.received;
      counts_.received_bytes += h.data_bytes;
      return;
    case delivery::closed: return;
    case delivery::damaged:
      return fail(h.from_node, "the data does not match its checksum: " + name_of(h));
    case delivery::no_memory:
      return fail(h.from_node, "this node has no memory left for " + name_of(h));
    case delivery::not_bound: return fail(h.from_node, "no receiver on this node: " + name_of(h));
    case delivery::garbled:
      return fail(h.from_node,
                  "cannot be understood: " + name_of(h) + (why.empty() ? "" : ": " + why));
    case delivery::full:
      return fail(h.from_node,
                  "its messages are not received, and their buffer is full: " + name_of(h));
  }
}

template bool transport_core::number(node_id, tensor_header&);
template bool transport_core::number(node_id, actor_message_header&);
template chosen_link transport_core::link_for(node_id, const tensor_header&);
template chosen_link transport_core::link_for(node_id, const bytes_header&);
template chosen_link transport_core::link_for(node_id, const actor_message_header&);
template disposition transport_core::arrived(const tensor_header&, std::uint64_t, void*);
template disposition transport_core::arrived(const bytes_header&, std::uint64_t, void*);
template disposition transport_core::arrived(const actor_message_header&, std::uint64_t, void*);
template void transport_core::delivered(const actor_message_header&, delivery, const std::string&);
template void transport_core::delivered(const tensor_header&, delivery, const std::string&);
template void transport_core::delivered(const bytes_header&, delivery, const std::string&);

// ---- the end

std::vector<void*> transport_core::close() {
  closed_ = true;
  std::vector<void*> descriptors;
  for (const auto& a : announced_) descriptors.push_back(a.descriptor);
  counts_.announced = 0;
  announced_.clear();
  return descriptors;
}

bool transport_core::all_answered() const {
  const auto nodes = connected();
  return std::all_of(nodes.begin(), nodes.end(), [&](node_id n) { return answered_.contains(n); });
}

}  // namespace rrfp::messaging

#include "peer_table.hpp"

namespace rrfp::actors::ucx {

namespace {

std::string name_of(node_id node) { return "node " + std::to_string(node.value()); }

}  // namespace

peer_table::peer_state peer_table::next(peer_state s, peer_event e) {
  switch (s) {
    case peer_state::connected:
      switch (e) {
        case peer_event::failed: return peer_state::failed;
        case peer_event::left: return peer_state::left;
      }
      break;
    case peer_state::failed:
    case peer_state::left: break;
  }
  return s;
}

status peer_table::connect(node_id node, const std::string& address) {
  const auto [found, is_new] = peers_.try_emplace(node);
  auto& p = found->second;
  if (!is_new)
    return error{name_of(node) + (p.state == peer_state::connected ? " is connected already"
                                                                   : " has ended: " + p.why)};
  p.table = this;
  p.node = node;
  const auto made = worker_.connect(address, &on_error, &p);
  if (!made) {
    peers_.erase(found);
    return error{"connecting to " + name_of(node) + ": " + made.message()};
  }
  p.endpoint = *made;
  return success();
}

void peer_table::on_error(void* arg, ucp_ep_h, ucs_status_t why) {
  auto& p = *static_cast<peer*>(arg);
  p.is_broken = true;
  p.table->has_unreported_ = true;
  p.table->fail(p.node, ucx_error("the connection broke", why).message);
}

ucp_ep_h peer_table::endpoint(node_id node) const {
  const auto found = peers_.find(node);
  if (found == peers_.end() || found->second.state != peer_state::connected) return nullptr;
  return found->second.endpoint;
}

bool peer_table::has_failed(node_id node) const {
  const auto found = peers_.find(node);
  return found != peers_.end() && found->second.state == peer_state::failed;
}

void peer_table::fail(node_id node, std::string why) {
  end(node, peer_event::failed, name_of(node) + ": " + why);
}

void peer_table::leave(node_id node) {
  end(node, peer_event::left, name_of(node) + " has left the job");
}

void peer_table::end(node_id node, peer_event e, std::string why) {
  // A node that this one never connected to may fail, too: it may have connected to this one.
  const auto [found, _] = peers_.try_emplace(node);
  auto& p = found->second;
  const auto before = p.state;
  p.state = next(before, e);
  if (p.state == before) return;
  p.table = this;
  p.node = node;
  p.why = std::move(why);
  p.is_unreported = true;
  has_unreported_ = true;
}

bool peer_table::settle() {
  if (!has_unreported_) return false;
  has_unreported_ = false;
  for (auto& [node, p] : peers_) {
    if (p.is_broken || p.state == peer_state::failed) close(p);
    if (!std::exchange(p.is_unreported, false)) continue;
    ended_(node, p.why, p.state == peer_state::failed);
  }
  return true;
}

void peer_table::close(peer& p) {
  if (p.endpoint == nullptr) return;
  ucp_request_param_t how{};
  how.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  how.flags = UCP_EP_CLOSE_FLAG_FORCE;
  auto* const request = ucp_ep_close_nbx(std::exchange(p.endpoint, nullptr), &how);
  if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
}

void peer_table::close_all() {
  for (auto& [_, p] : peers_) close(p);
}

std::size_t peer_table::closing() {
  std::erase_if(closing_, [](void* request) {
    if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
    ucp_request_free(request);
    return true;
  });
  return closing_.size();
}

std::vector<node_id> peer_table::connected() const {
  std::vector<node_id> nodes;
  for (const auto& [node, p] : peers_)
    if (p.state == peer_state::connected && p.endpoint != nullptr) nodes.push_back(node);
  return nodes;
}

std::string peer_table::describe() const {
  std::string line;
  for (const auto node : connected())
    line += (line.empty() ? "" : "; ") + name_of(node) + ": " + lanes_of(endpoint(node));
  return line.empty() ? "no node connected" : line;
}

}  // namespace rrfp::actors::ucx

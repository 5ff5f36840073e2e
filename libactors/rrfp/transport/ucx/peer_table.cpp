#include "peer_table.hpp"

namespace rrfp::actors::ucx {

namespace {

std::string name_of(node_id node) { return "node " + std::to_string(node.value()); }

}  // namespace

status peer_table::connect(node_id node, const std::string& address) {
  if (auto may = core_.may_connect(node); !may) return may;
  auto& link = links_.emplace(node, peer_link{this, node, nullptr}).first->second;
  const auto made = worker_.connect(address, &on_error, &link);
  if (!made) {
    links_.erase(node);
    return error{"connecting to " + name_of(node) + ": " + made.message()};
  }
  link.endpoint = *made;
  core_.connected(node, &link);
  return success();
}

void peer_table::on_error(void* arg, ucp_ep_h, ucs_status_t why) {
  const auto& link = *static_cast<peer_link*>(arg);
  link.table->core_.broke(link.node, ucx_error("the connection broke", why).message);
}

bool peer_table::settle() {
  if (!core_.has_ends()) return false;
  for (const auto& e : core_.settle()) {
    if (e.broken_link != nullptr) close(e.broken_link);
    if (!e.is_new) continue;
    node_.exchange.end(e.node, e.why);
    if (e.has_failed && node_.calls.failed && !node_.stopping) node_.calls.failed(e.node, e.why);
  }
  return true;
}

void peer_table::close(void* link) {
  ucp_request_param_t how{};
  how.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  how.flags = UCP_EP_CLOSE_FLAG_FORCE;
  auto* const request = ucp_ep_close_nbx(static_cast<peer_link*>(link)->endpoint, &how);
  if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
}

void peer_table::close_all() {
  for (auto* const link : core_.close_links()) close(link);
}

std::size_t peer_table::closing() {
  std::erase_if(closing_, [](void* request) {
    if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
    ucp_request_free(request);
    return true;
  });
  return closing_.size();
}

std::string peer_table::describe() const {
  std::string line;
  for (const auto node : core_.connected())
    line += (line.empty() ? "" : "; ") + name_of(node) + ": " + lanes_of(links_.at(node).endpoint);
  return line.empty() ? "no node connected" : line;
}

}  // namespace rrfp::actors::ucx

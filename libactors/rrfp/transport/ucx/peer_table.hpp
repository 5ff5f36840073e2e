/// The endpoints of the other nodes; the core decides which are used. An ended one is closed
/// outside of UCX's callbacks. Used only by the progress thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "node_state.hpp"
#include "ucx_worker.hpp"

namespace rrfp::actors::ucx {

class peer_table;

/// What the core calls the link of a node.
struct peer_link {
  peer_table* table;
  node_id node;
  ucp_ep_h endpoint;
};

class peer_table {
 public:
  peer_table(node_state& node, worker& w) : node_(node), core_(node.core), worker_(w) {}
  peer_table(const peer_table&) = delete;
  peer_table& operator=(const peer_table&) = delete;

  status connect(node_id node, const std::string& address);

  /// Call it outside of UCX's callbacks: closes ended endpoints, and reports each node that has
  /// ended once. True if any has.
  bool settle();

  /// "node 1: posix/memory; node 2: tcp/eth0"
  std::string describe() const;

  /// Begins to force-close every endpoint.
  void close_all();
  /// Number of endpoints that are still closing.
  std::size_t closing();

 private:
  static void on_error(void* arg, ucp_ep_h endpoint, ucs_status_t why);
  void close(void* link);

  node_state& node_;
  transport_core& core_;
  worker& worker_;
  std::map<node_id, peer_link> links_;
  std::vector<void*> closing_;
};

}  // namespace rrfp::actors::ucx

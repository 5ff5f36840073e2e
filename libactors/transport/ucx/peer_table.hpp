/// The other nodes and their endpoints. Used only by the progress thread.
///
///   connected --failed--> failed      an endpoint error, an invalid message, give_up()
///   connected --left----> left        it sent a farewell
///
/// Only the first event is reported. After it, nothing is sent to the node, and its endpoint is
/// closed outside of UCX's callbacks.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <rrfp/base/ids.hpp>

#include "ucx_worker.hpp"

namespace rrfp::actors::ucx {

class peer_table {
 public:
  using ended_handler = std::function<void(node_id, const std::string& why, bool has_failed)>;

  /// settle() calls `ended` once per node.
  peer_table(worker& w, ended_handler ended) : worker_(w), ended_(std::move(ended)) {}
  peer_table(const peer_table&) = delete;
  peer_table& operator=(const peer_table&) = delete;

  status connect(node_id node, const std::string& address);
  /// Null unless the node is connected.
  ucp_ep_h endpoint(node_id node) const;
  bool has_failed(node_id node) const;

  void fail(node_id node, std::string why);
  void leave(node_id node);

  /// Call it outside of UCX's callbacks: closes ended endpoints and reports them. True if any
  /// ended.
  bool settle();

  std::vector<node_id> connected() const;
  /// "node 1: posix/memory; node 2: tcp/eth0"
  std::string describe() const;

  /// Begins to force-close every endpoint.
  void close_all();
  /// Number of endpoints that are still closing.
  std::size_t closing();

 private:
  enum class peer_state : std::uint8_t { connected, failed, left };
  enum class peer_event : std::uint8_t { failed, left };

  struct peer {
    peer_table* table = nullptr;
    node_id node;
    ucp_ep_h endpoint = nullptr;
    peer_state state = peer_state::connected;
    std::string why;
    bool is_unreported = false;
    bool is_broken = false;  ///< UCX can no longer use the endpoint
  };

  static peer_state next(peer_state s, peer_event e);
  static void on_error(void* arg, ucp_ep_h endpoint, ucs_status_t why);
  void end(node_id node, peer_event e, std::string why);
  void close(peer& p);

  worker& worker_;
  const ended_handler ended_;
  std::map<node_id, peer> peers_;
  std::vector<void*> closing_;
  bool has_unreported_ = false;
};

}  // namespace rrfp::actors::ucx

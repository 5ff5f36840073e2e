/// The membership of node 0: the listener, and one connection to every other node.
#pragma once

#include <list>
#include <optional>
#include <string>
#include <vector>

#include "handshake.hpp"
#include "watcher.hpp"

#include <poll.h>

namespace rrfp::actors::control {

class coordinator : public watcher {
 public:
  /// `listener`: a socket that already listens, or empty.
  coordinator(membership_options options, secret key, std::string card, file_descriptor listener)
      : watcher(std::move(options), std::move(key), std::move(card)),
        listener_(std::move(listener)),
        peers_by_node_(options_.nodes) {}
  ~coordinator() override { end(); }

 private:
  enum class phase : std::uint8_t {
    handshaking,  ///< the handshake is not finished
    introducing,  ///< admitted; its introduction is missing
    joined,
    refused,  ///< the reason is being sent
    gone,
  };

  struct peer {
    peer(file_descriptor fd, const secret& key, const job_identity& job)
        : link(std::move(fd)), handshake(key, job) {}

    channel link;
    server_handshake handshake;
    phase state = phase::handshaking;
    clock::time_point since = clock::now();  ///< start of the handshake, or of the refusal
    clock::time_point heartbeat_due;
    node_id node;
    std::string description;
    std::string card;
    std::string status;
    bool said_goodbye = false;
  };

  void watch() override;
  status open_listener();
  status listen_at_one_of(const std::vector<address>& addresses);
  void one_turn();
  void serve_requests();
  void check_peers(clock::time_point now);
  void check_peer(peer& p, clock::time_point now);
  bool all_acknowledged_leave() const;
  void wait_for_sockets();

  void accept_all();
  void close_oldest_pending();
  void receive(peer& p);
  void on_frame(peer& p, const frame& f);
  void on_handshake(peer& p, const frame& f);
  void on_introduction(peer& p, const frame& f);
  void on_message(peer& p, const frame& f);
  void on_piece(peer& p, const piece& received, bool passed_on);
  void on_lost_notice(peer& p, const std::string& message);
  void on_goodbye(peer& p);
  std::string why_unavailable(node_id node) const;
  void start_if_complete();
  void report_missing_nodes();

  /// Closes the connection; a member of a started job is lost.
  void drop(peer& p, const std::string& why);
  void refuse_join(peer& p, frame answer, const std::string& reason);
  void report_refusal(const peer& p, const std::string& reason);
  void declare_lost(peer& p, const std::string& why);
  /// Node 0 itself is lost.
  void declare_self_lost(const std::string& message);
  /// Whether all other nodes have been silent for about the node timeout.
  bool all_nodes_silent(clock::time_point now) const;
  /// Calls `action` for every joined node except `excluded`.
  template <class Action>
  void for_each_member(const peer* excluded, Action action);

  file_descriptor listener_;
  address listening_;
  std::list<peer> peers_;
  std::vector<peer*> peers_by_node_;  ///< by node number; the entry of node 0 stays null
  bool started_ = false;
  bool lost_one_ = false;
  bool said_goodbye_ = false;
  short listens_ = POLLIN;
  int refusals_ = 0;
};

}  // namespace rrfp::actors::control

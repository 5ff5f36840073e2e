/// The membership of the leader, which is node 0 or its successor: who may join, when the job
/// begins, who is silent, lost or gone.
///
///   opening -> joining -> running -> lost
///                            |         |
///                            +-> leaving -> closed
///
/// Each connection: handshaking -> introducing -> joined, or handshaking -> refused. A connection
/// that ends before the job begins frees its node number; from then on it is a loss unless the node
/// said goodbye. The first loss is announced to all nodes, which report it in the same words.
///
/// After a loss the job may go on without nodes (core_options::hosts): once those that are
/// expected have joined, or no further one has for rejoin_max. A node that comes later waits;
/// node_waits says so. So that groups of nodes that cannot reach each other do not all go on, it
/// also takes more than half of the nodes that were there before, or half with the first of them,
/// or all whose processes have not ended, which `examine` asks for.
///
/// Pure: equal events and times give equal actions. An event that the phase does not expect, or of
/// a connection that is closed, changes nothing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <rrfp/core/membership_common.hpp>

namespace rrfp::membership_core {

enum class leader_phase : std::uint8_t {
  opening,  ///< the listener is not open yet
  joining,
  running,
  lost,  ///< a node was lost; others may still be connected
  leaving,
  closed,
};

class leader_core {
 public:
  /// Limit of connections that have not joined, unless the job has more nodes, which may all come
  /// at once; a further one closes the oldest.
  static constexpr std::size_t pending_max = 64;
  /// How long a refused node has to read the reason.
  static constexpr std::int64_t refused_max = 1'000'000'000;
  static constexpr int refusals_reported_max = 100;
  static constexpr std::size_t refusal_bytes_max = 128;  ///< in the status
  static constexpr std::int64_t rejoin_max = 1'000'000'000;
  static constexpr std::int64_t examine_after = 5'000'000'000;

  explicit leader_core(core_options options)
      : common_(std::move(options)),
        by_node_(common_.options.nodes),
        contributions_(common_.options.nodes),
        contributions_missing_(common_.options.nodes) {}
  leader_core(leader_core&&) = default;  // no copies: by_node_ points into peers_

  /// The actions, to be carried out in this order.
  std::vector<action::any> on(const event::any& e, std::int64_t now);
  leader_phase phase() const { return phase_; }

 private:
  enum class stage : std::uint8_t {
    handshaking,
    introducing,  ///< admitted; its introduction is missing
    joined,
    refused,  ///< the reason is being sent
  };
  struct peer {
    connection_id id;
    std::string address;
    std::string host;
    std::int64_t since = 0;  ///< start of the handshake, or of the refusal
    std::int64_t heard = 0;
    stage at = stage::handshaking;
    node_id node{};
    process_id process{};
    bool again = false;  ///< as in event::proven
    std::vector<std::uint32_t> quorum{};
    std::uint16_t port = 0;
    std::string description{};
    std::string status{};
    bool said_goodbye = false;
    bool ends = false;          ///< after its dismissal, which it confirmed
    arriving_bytes arriving{};  ///< for the exchange
  };

  bool expects(const event::any& e) const;
  static bool is_admitted(const peer& p) {
    return p.at == stage::introducing || p.at == stage::joined;
  }

  void after(const event::listening& e);
  void after(const event::unreachable&) {}
  void after(const event::opened& e);
  void after(const event::proven& e);
  void after(const event::refused& e);
  void after(const event::heard& e) { peers_.at(e.connection).heard = now_; }
  void after(const event::received& e);
  void after(const event::garbled& e);
  void after(const event::closed& e) { drop(e.connection, e.why); }
  void after(const event::examined& e);
  void after(const event::node_0_found&);
  void after(const event::contributed& e);
  void after(const event::answered& e);
  void after(const event::interrupted&) { common_.interrupt(); }
  void after(const event::status_set& e) { common_.status = e.text; }
  void after(const event::leave&);
  void after(const event::closing& e);
  void after(const event::woke&) { (void)begin_turn(); }
  void after(const event::turn&);

  // Each takes a message of a node that has joined. Returns why its connection must end, if so.
  std::string take(peer& p, const ping& m);
  std::string take(peer& p, const goodbye&);
  std::string take(peer& p, const piece& m);
  std::string take(peer&, const lost& m);
  /// All that a node may not say.
  template <class Message>
  std::string take(peer&, const Message&) {
    return "it sent a malformed message";
  }

  void check(peer& p);
  std::string why_unavailable(node_id node) const;
  /// Whether another process has the place of this one, or it was declared lost.
  bool is_replaced(const event::proven& e) const;
  void introduce_node(peer& p, const any_message& m);
  void start_if_complete();
  void begin_job();
  /// Whether the job may go on without the nodes that have not joined.
  bool is_enough();
  /// Whether no other part of these nodes may go on.
  bool is_quorum(const std::set<node_id>& of) const;
  /// The sets for each of which is_quorum() must hold: those of this node and of the joined nodes.
  std::vector<std::set<node_id>> quorums() const;
  /// Asks whether the processes of nodes that a quorum lacks have ended. `known`: asks only about
  /// nodes that are not expected.
  void examine_missing(bool known);
  bool has_joined(node_id node) const;
  /// As a process that was a member before.
  bool is_back(node_id node) const;
  node_id own() const { return common_.options.node; }
  /// Clears the contributions for the next exchange, to which absent nodes contribute nothing.
  void clear_contributions();
  void report_missing_nodes();
  /// Closes the connection; a member of a started job is lost.
  void drop(connection_id c, const std::string& why);
  /// Frees the place of a node that is told the end, or whose connection closes.
  void vacate(const peer& p);
  void refuse(peer& p, std::optional<node_id> claimed, const std::string& reason,
              const std::string& answer, bool for_now = false, bool lost = false);
  /// A refusal that is not reported.
  void turn_away(peer& p, const std::string& answer, bool for_now, bool lost);
  void report_refusal(const peer& p, std::optional<node_id> claimed, const std::string& reason);
  void declare_lost(const peer& p, const std::string& why);
  /// This node itself is lost.
  void declare_self_lost(const std::string& message);
  /// False: it has given up its place.
  bool begin_turn();
  void settle_exchange();
  void fail_exchange(const std::string& why);
  std::string name_of_member(node_id n) const {
    return name_of(n, roster_.at(n.value()).description);
  }
  /// Whether all other nodes have been silent for about the node timeout.
  bool all_nodes_silent() const;
  bool all_said_goodbye() const;
  /// Admits a node that comes after the end, to tell it.
  void tell_end(peer& p);
  void begin_leaving();
  /// A node that lost the process before this one knows that the job is over.
  void learn_end(peer& p);
  void report_if_all_left();
  /// After the end all nodes leave one by one, each once the one before has closed its connection:
  /// while many processes end at once, each takes long, and one that is killed meanwhile would get
  /// a replacement which nobody can tell the end. True: none is left, or the last one ends now.
  bool dismiss_next();
  /// The connections of the nodes that have joined, by node.
  std::vector<connection_id> members() const;
  void send(std::vector<connection_id> to, any_message m);

  common_part common_;
  leader_phase phase_ = leader_phase::opening;
  std::int64_t now_ = 0;
  std::string listening_;
  std::string host_;
  std::map<connection_id, peer> peers_;
  std::vector<peer*> by_node_;    ///< admitted; the entry of this node stays null
  std::size_t joined_ = 0;        ///< of them, that have introduced themselves
  std::int64_t last_joined_ = 0;  ///< when the last of them did; before, when this node listened
  std::vector<member> roster_;
  std::int64_t check_due_ = 0;
  /// By node: what has come for the running exchange, or for the next one once this node has
  /// answered.
  std::vector<shared_bytes> contributions_;
  std::size_t contributions_missing_ = 0;
  std::uint64_t round_ = 0;  ///< of them
  std::set<node_id> absent_;
  std::set<node_id> examining_;
  std::set<node_id> gone_;  ///< do not go on
  std::int64_t examine_due_ = 0;
  std::uint16_t port_ = 0;  ///< as introduce::port
  std::set<node_id> departed_;
  std::set<node_id> told_;                  ///< know that the job is over, and need nothing more
  std::optional<connection_id> dismissed_;  ///< the newest
  int refusals_ = 0;
  std::map<std::uint32_t, std::string> refused_;  ///< why, by node, until it joins
};

}  // namespace rrfp::membership_core

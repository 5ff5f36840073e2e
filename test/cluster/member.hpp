/// The membership of one process: what watch_loop.cpp does around the core, on simulated
/// connections. All that the process learns comes through `events`.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include <rrfp/core/follower_core.hpp>
#include <rrfp/core/leader_choice.hpp>
#include <rrfp/core/leader_core.hpp>

#include "network.hpp"

namespace rrfp::cluster {

class process;

/// As long as a membership takes to write what is left and close.
constexpr nanoseconds linger_max = 60 * ms;

class member {
 public:
  /// Called from a turn; the process must answer later, not at once.
  struct reports {
    std::function<void()> joined;
    std::function<void(const membership_core::action::join_failed&)> join_failed;
    /// On the leader the bytes of all nodes, which it must answer; on the others the answer.
    std::function<void(result<std::vector<std::string>>)> exchanged;
    std::function<void()> left;
  };

  member(process& owner, rendezvous& at, reports to, std::uint32_t version, std::uint64_t key);
  ~member();

  void begin();
  /// Ends the membership: closes all connections. `reason`: why it gives up joining.
  void end(std::string reason = {});
  /// The process is gone; its connections end unless the machine is gone with it.
  void vanish(bool silently);
  void reset_connections();

  void exchange(std::string bytes, nanoseconds limit, bool last = false);
  /// Node 0: one answer for each node, or one for all.
  void answer(const std::vector<std::string>& answers);
  /// Ends the running exchange and every later one.
  void interrupt() { request(membership_core::event::interrupted{}); }
  void leave();
  void set_status(std::string text);
  using loss_handler = std::function<void(const membership_core::action::lost&)>;
  void on_lost(loss_handler callback);
  const std::optional<membership_core::action::lost>& loss() const { return lost_; }
  /// Has joined, lost nobody and does not leave.
  bool is_whole() const { return !members_.empty() && !lost_ && !leaving_ && !ended_; }
  /// As membership::members().
  const std::vector<membership_core::member>& members() const { return members_; }
  std::vector<node_id> absent() const;
  node_id leader() const { return choice_.node(); }
  /// How long it tries to find one leader that others may have found, or to lead.
  nanoseconds patience() const;
  /// Whoever connects to the life line of the process finds this membership.
  bool serves_life_line() const { return leads() && choice_.next() && !ended_; }
  void on_node_waits(std::function<void(node_id)> callback) {
    on_node_waits_ = std::move(callback);
  }
  const std::string& waiting() const { return waiting_; }

 private:
  using connection_id = membership_core::connection_id;
  struct link {
    std::shared_ptr<control_connection> wire;
    int side = 0;
    bool admitted = false;
    bool refused = false;
    bool closed = false;
  };

  bool leads() const;
  void look_for_node_0();
  void stop_listening();
  std::uint16_t life_line_port() const;
  void wake(nanoseconds after = 0);
  void one_turn();
  void connect();
  void open_link(std::shared_ptr<control_connection> wire, int side);
  void receive(connection_id id, link& l);
  void take(connection_id id, link& l, const frame& f);
  void feed(const membership_core::event::any& e);
  void request(membership_core::event::any e);

  void carry_out(const membership_core::action::connect& a);
  void carry_out(const membership_core::action::admit& a);
  void carry_out(const membership_core::action::refuse& a);
  void carry_out(const membership_core::action::send& a);
  void carry_out(const membership_core::action::contribute& a);
  void carry_out(const membership_core::action::write_notices&) {}
  void carry_out(const membership_core::action::close& a);
  void carry_out(const membership_core::action::stop_listening&);
  void carry_out(const membership_core::action::examine& a);
  void carry_out(const membership_core::action::look_for_node_0&) { look_for_node_0(); }
  void carry_out(const membership_core::action::leader_returns&);
  void carry_out(const membership_core::action::waiting& a) { waiting_ = a.text; }
  void carry_out(const membership_core::action::refused_join& a);
  void carry_out(const membership_core::action::gone_early& a);
  void carry_out(const membership_core::action::join_failed& a) {
    has_failed_ = true;
    to_.join_failed(a);
  }
  void carry_out(const membership_core::action::fence& a);
  void carry_out(const membership_core::action::job_over&);
  void carry_out(const membership_core::action::clock_offset& a);
  void carry_out(const membership_core::action::joined& a);
  void carry_out(const membership_core::action::node_waits& a);
  void carry_out(const membership_core::action::lost& a);
  void carry_out(const membership_core::action::left&);
  void carry_out(const membership_core::action::exchanged& a);
  void carry_out(const membership_core::action::exchange_failed& a);

  process& owner_;
  const membership_core::leader_choice choice_;  ///< when it begins
  rendezvous& rendezvous_;
  const reports to_;
  const std::uint32_t version_;
  const std::uint64_t key_;
  std::variant<membership_core::leader_core, membership_core::follower_core> core_;
  std::map<connection_id, link> links_;
  std::set<connection_id> news_;  ///< of the links from which something has come
  std::vector<connection_id> closed_;
  std::uint32_t links_opened_ = 0;
  std::deque<membership_core::event::any> requests_;
  std::vector<membership_core::member> members_;
  std::string waiting_;
  std::optional<membership_core::action::lost> lost_;
  loss_handler on_lost_;
  std::function<void(node_id)> on_node_waits_;
  bool loss_delivered_ = false;
  bool listens_ = false;
  bool connects_ = false;  ///< an attempt is under way, and the thread waits for it
  bool leaving_ = false;
  bool has_failed_ = false;  ///< to join
  bool ended_ = false;
  std::uint64_t turns_asked_ = 0;  ///< only the last one asked for counts
  nanoseconds next_turn_ = -1;
  std::optional<nanoseconds> connect_at_;
  std::shared_ptr<bool> lives_ = std::make_shared<bool>(true);
};

}  // namespace rrfp::cluster

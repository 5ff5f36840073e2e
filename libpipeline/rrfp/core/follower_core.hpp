/// The membership of every node but the leader: one connection to the leader, retried until the job
/// begins.
///
///   connecting -> handshaking -> introduced -> measuring -> joined -> ended
///       ^              |             |
///       +--------------+-------------+  the leader is not up, or is gone before the job began
///
/// After the start of the job the node measures its clock against that of the leader before it
/// reports that it has joined. Then the end of the connection is the loss of the leader, unless
/// either side has said goodbye; all other losses are announced by the leader.
///
/// Pure: equal events and times give equal actions. An event that the phase does not expect changes
/// nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <rrfp/core/clock_filter.hpp>
#include <rrfp/core/membership_common.hpp>

namespace rrfp::membership_core {

enum class follower_phase : std::uint8_t {
  connecting,  ///< an attempt is under way or due
  handshaking,
  introduced,  ///< waits until all nodes have joined
  measuring,   ///< the job begins: the first round trips to the leader
  joined,
  ended,  ///< the join or the connection has failed, or the leader has left
  closed,
};

class follower_core {
 public:
  static constexpr std::int64_t retry_after = 100'000'000;
  static constexpr std::int64_t inquire_after = 1'000'000'000;
  /// Round trips before the join is reported, so that the clock offset is good from the start.
  static constexpr std::size_t round_trips_first = 8;

  explicit follower_core(core_options options) : common_(std::move(options)) {}

  /// The actions, to be carried out in this order.
  std::vector<action::any> on(const event::any& e, std::int64_t now);
  follower_phase phase() const { return phase_; }

 private:
  bool expects(const event::any& e) const;
  bool is_connected() const { return phase_ == follower_phase::introduced || has_started(); }
  bool has_started() const {
    return phase_ == follower_phase::measuring || phase_ == follower_phase::joined;
  }

  void after(const event::listening& e) { port_ = e.port; }
  void after(const event::examined&) {}
  void after(const event::node_0_found&) {}
  void after(const event::unreachable& e);
  void after(const event::opened& e);
  void after(const event::proven&);
  void after(const event::refused& e);
  void after(const event::heard&) { heard_ = now_; }
  void after(const event::received& e);
  void after(const event::garbled& e);
  void after(const event::closed& e) { end_connection(e.why); }
  void after(const event::contributed& e);
  void after(const event::answered&) {}
  void after(const event::interrupted&) { common_.interrupt(); }
  void after(const event::status_set& e) { common_.status = e.text; }
  void after(const event::leave&);
  void after(const event::closing&);
  void after(const event::woke&) { (void)begin_turn(); }
  void after(const event::turn&);

  // Each takes a message of the leader. False: it is malformed, or comes at the wrong time.
  bool take(const start& m);
  bool take(const over&);
  bool take(const give_up& m);
  bool take(const pong& m);
  bool take(const lost& m);
  bool take(const goodbye&);
  bool take(const piece& m);
  bool take(const no_exchange& m);
  bool take(const leader_returns&);
  /// All that the leader may not say.
  template <class Message>
  bool take(const Message&) {
    return false;
  }

  /// `is_gone`: there is no process that could lead soon.
  void retry(std::string waiting, bool is_gone = false);
  void end_join(action::join_failed why);
  void become_member();
  /// The connection to the leader failed, timed out or carried invalid data. `silent`: it may only
  /// have stalled.
  void end_connection(const std::string& why, bool silent = false);
  void give_up_place();
  /// False: it has given up its place.
  bool begin_turn();
  void say_goodbye();
  void settle_exchange();
  void send(any_message m) { common_.act(action::send{{connection_}, std::move(m)}); }

  common_part common_;
  follower_phase phase_ = follower_phase::connecting;
  std::int64_t now_ = 0;
  connection_id connection_;  ///< the current one, or the last
  std::string address_;       ///< of the leader
  std::string host_;
  std::int64_t since_ = 0;
  std::int64_t heard_ = 0;
  std::int64_t heartbeat_due_ = 0;
  std::string leader_name() const { return name_of(common_.options.leader, {}); }

  std::uint16_t port_ = 0;
  std::optional<std::int64_t> began_;  ///< when it had to wait first
  std::string leader_description_;
  std::string leader_status_;
  start start_;  ///< what the leader has said at the start
  clock_filter filter_;
  bool leader_left_ = false;
  bool said_goodbye_ = false;
  std::uint64_t round_ = 0;  ///< exchanges that the leader has answered
  arriving_bytes answer_;
};

}  // namespace rrfp::membership_core

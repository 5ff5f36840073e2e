/// What the cores of the leader and of the other nodes have in common: the first loss, this node's
/// own stalls, leaving, and the exchanges.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <rrfp/core/membership_events.hpp>
#include <rrfp/core/rank_hosts.hpp>

namespace rrfp::membership_core {

/// From the connection to the end of the handshake; on node 0, to the introduction.
inline constexpr std::int64_t handshake_max = 5'000'000'000;

struct core_options {
  std::uint32_t nodes = 1;
  node_id node;
  node_id leader{0};  ///< the node that listens: this one, or another
  std::string description;
  std::int64_t heartbeat = 0;
  std::int64_t node_timeout = 0;  ///< three heartbeats at least
  process_id process{};
  bool again = false;  ///< the process has been a member before
  /// When the process is known to have been awake: at the end of its last membership, plus its own
  /// pauses since then.
  std::optional<std::int64_t> awake_at{};
  std::set<process_id> lost{};  ///< processes that may not join again
  bool over = false;            ///< the process knows that the job is over
  /// After a loss the job goes on without nodes if this has a place for each rank.
  rank_hosts hosts{};
  /// The nodes that will join soon, as far as the process knows: those that were there before the
  /// loss, and one that waited.
  std::set<node_id> expected{};
  /// As introduce::quorum.
  std::set<node_id> quorum{};
  /// How long a follower tries to reach the leader before its join fails. If the leader's process
  /// has ended, the join fails at once. Nothing: it tries for ever, even if the process has ended.
  std::optional<std::int64_t> patience{};
  /// The leader's process may be alive although nobody listens at its address.
  bool may_be_away = false;
  /// A follower only asks whether the leader listens; it has joined when it knows.
  bool inquires = false;

  /// The longest time between two turns of the driver.
  std::int64_t turn() const { return heartbeat / 2; }
};

/// "1.5 s".
std::string seconds_text(std::int64_t ns);

/// The bytes of one node in an exchange, while they arrive.
class arriving_bytes {
 public:
  /// All of them with the last piece, else null. Nothing: the piece is invalid.
  std::optional<shared_bytes> add(const piece& p);

 private:
  std::string bytes_;
};

class common_part {
 public:
  explicit common_part(core_options o)
      : options(std::move(o)), fenced_(options.lost), over_(options.over) {}

  template <class Action>
  void act(Action a) {
    actions_.emplace_back(std::move(a));
  }
  /// Ends an event: the actions of it.
  std::vector<action::any> take_actions() { return std::exchange(actions_, {}); }

  /// Measures how late the driver is. A node that was stopped itself must not take its own stall
  /// for silence of the others. After a loss, while the others join again without it, a process
  /// that has overslept may not join again.
  void note_turn(std::int64_t now);
  /// The time since the last call that does not count as silence of the others.
  std::int64_t take_stall() { return std::exchange(stall_, 0); }
  /// Whether this node was recently stalled for so long that the others may have declared it lost.
  bool was_stalled(std::int64_t now) const {
    return stalled_until_ && now - *stalled_until_ < options.node_timeout;
  }

  /// Whether this process has just been stalled for so long that the others have declared it lost,
  /// so that another process may have its place. It holds for longer than the node timeout, which
  /// others that are silent have after the stall, too.
  bool has_overslept(std::int64_t now) const {
    return overslept_until_ && now - *overslept_until_ < 2 * options.node_timeout;
  }
  /// Whether another process may have the place of this one, which has not joined.
  bool has_lost_place(std::int64_t now) const {
    return !over_ && (has_overslept(now) || is_fenced(options.process));
  }
  std::string overslept() const;
  /// The process may not join again.
  void fence(process_id process);
  bool is_fenced(process_id process) const { return fenced_.contains(process); }

  /// Reports a loss unless this node leaves. The first one ends the job; the others follow from it.
  void lose(node_id node, std::string message, bool is_silent = false);
  const std::optional<action::lost>& loss() const { return loss_; }
  /// All nodes have agreed on the end: from now on there are no losses.
  void end_job() {
    if (!std::exchange(over_, true)) act(action::job_over{});
  }
  bool is_over() const { return over_; }
  bool is_last_exchange() const { return last_; }
  void begin_leaving() { leaving_ = true; }
  bool is_leaving() const { return leaving_; }
  void report_left();
  bool has_left() const { return left_; }

  void interrupt() { interrupted_ = true; }
  /// False: it has failed at once.
  bool begin_exchange(const event::contributed& e);
  bool is_exchanging() const { return exchange_.has_value(); }
  void end_exchange(std::vector<shared_bytes> all);
  /// The running exchange, or the next one if none is running, has failed; none follows.
  void fail_exchange(error why);
  bool has_failed() const { return exchange_failed_; }
  /// Fails the running exchange if a loss, an interrupt or leaving ends it.
  void settle_exchange();
  /// The time of the running exchange is over.
  bool is_overdue(std::int64_t now) const { return exchange_ && now >= exchange_->deadline; }
  /// Why it fails then; `missing`: what has not come.
  std::string overdue(const std::string& missing) const {
    return "an exchange exceeded " + seconds_text(exchange_->limit) + ": " + missing;
  }

  const core_options options;
  std::string status;  ///< of this node: what heartbeats carry

 private:
  std::vector<action::any> actions_;
  std::optional<std::int64_t> last_turn_;
  std::int64_t stall_ = 0;
  std::optional<std::int64_t> stalled_until_;
  std::optional<std::int64_t> overslept_until_;
  std::set<process_id> fenced_;

  std::optional<action::lost> loss_;
  bool over_ = false;
  bool last_ = false;  ///< of the exchange that runs, or ran before
  bool leaving_ = false;
  bool left_ = false;
  bool interrupted_ = false;

  std::optional<event::contributed> exchange_;  ///< the running one
  bool exchange_failed_ = false;
  std::string refusal_;  ///< why the next exchange fails, if none was running
};

/// "node 2 (stages 4, 5)".
std::string name_of(node_id node, std::string_view description, std::string_view status = {});
/// "node 2", "nodes 2, 3, 5", "nodes 1, 2, 3, 4, 5, 6, 7, 8 and 90 more".
std::string names_of(const std::vector<std::uint32_t>& nodes);
/// The text of another process as one printable line of limited length.
std::string printable(std::string_view text, std::size_t bytes_max = reason_bytes_max);
/// What is reported of a node that disconnects before the job begins.
action::gone_early gone_early(const std::string& name, const std::string& why);

}  // namespace rrfp::membership_core

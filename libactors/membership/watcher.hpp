/// The common part of the memberships of node 0 and of the other nodes: the watch thread, and the
/// state that it shares with the other threads of the process. The process makes requests (send
/// these bytes, leave, close); the watch thread reports events (joined, received, lost).
///
/// Only the watch thread uses sockets. It holds the lock of the shared state briefly, and never
/// during a callback.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <rrfp/actors/membership.hpp>

#include "channel.hpp"
#include "wire.hpp"

namespace rrfp::actors::control {

using shared_bytes = std::shared_ptr<const std::string>;

class watcher {
 public:
  watcher(membership_options options, secret key, std::string card);
  virtual ~watcher();

  /// Starts the watch thread and blocks until the node has joined, or until the join fails.
  status join();
  const std::vector<member>& members() const { return members_; }
  node_id node() const { return options_.node; }
  std::chrono::nanoseconds clock_offset() const { return std::chrono::nanoseconds{offset_ns_}; }
  void on_lost(std::function<void(node_id, std::string)> callback);
  void set_status(std::string text);
  std::string loss_message(std::chrono::milliseconds limit);
  result<std::vector<std::string>> all_gather(std::string bytes, std::chrono::milliseconds limit) {
    return exchange(std::move(bytes), limit, false);
  }
  result<std::vector<std::string>> gather(std::string bytes, std::chrono::milliseconds limit) {
    return exchange(std::move(bytes), limit, true);
  }
  void leave(std::chrono::milliseconds limit);
  void interrupt();

 protected:
  struct loss {
    node_id node;
    std::string why;
  };
  /// The bytes of this node for one exchange.
  struct contribution {
    frame_type type;  ///< piece or deposit
    std::uint64_t round;
    shared_bytes bytes;
  };

  /// Runs on the watch thread; returns soon after closing().
  virtual void watch() = 0;
  /// Ends the watch thread. Every derived destructor must call it, because watch() is virtual.
  void end();

  // For the watch thread: requests of the process.
  bool closing() const;
  bool leaving() const;
  std::string current_status() const;
  std::string give_up_reason() const;
  std::optional<contribution> take_contribution();

  // For the watch thread: its reports.
  /// `for_now`: a later join may succeed.
  void report_join_failed(std::string why, bool for_now = false);
  /// A joined node disconnected before the job began: see membership_options.
  void report_gone_early(const std::string& who, const std::string& why) const;
  void report_waiting(std::string reason);
  void report_joined(std::vector<member> members);
  void report_lost(node_id node, std::string message);
  void report_departed(node_id node);
  void report_left();
  void report_offset(std::chrono::nanoseconds offset) { offset_ns_ = offset.count(); }
  /// Adds a piece. Returns all bytes of (round, node) after the last piece, and null before. Error:
  /// the piece is invalid.
  result<shared_bytes> add_piece(const piece& p);

  /// Calls on_lost if there is a loss and a callback that has not been called.
  void deliver_loss();
  /// Sends a heartbeat if one is due, and sets when the next one is.
  void send_heartbeat_if_due(channel& to, clock::time_point& due, clock::time_point now);
  /// How late this turn of the watch thread is, or 0. A process that was stopped itself must not
  /// take its own stall for silence of the others.
  clock::duration own_delay(clock::time_point now);
  /// Whether this process was recently stalled for so long that the others may have declared it
  /// lost.
  bool was_stalled(clock::time_point now) const {
    return stalled_until_ && now - *stalled_until_ < options_.node_timeout;
  }
  /// Half a heartbeat: the longest time between two turns of the watch thread.
  clock::duration turn() const { return options_.heartbeat / 2; }
  /// Waits until `fd` is ready, the process makes a request, or `until`. True if `fd` is ready.
  bool wait_for(int fd, short events, clock::time_point until);
  /// Writes the remaining frames and closes, within `linger_max`. Closing at once could reset the
  /// connection and lose frames in flight.
  void wind_down(std::vector<channel*> open);

  static std::int64_t ns(clock::time_point t) { return t.time_since_epoch().count(); }

  membership_options options_;
  const secret key_;
  const std::string card_;
  const job_identity job_;
  const wake_event wake_;

 private:
  result<std::vector<std::string>> exchange(std::string bytes, std::chrono::milliseconds limit,
                                            bool to_node_0);
  /// The nodes whose bytes are still missing here. In a gather, nodes other than 0 wait only for
  /// node 0.
  std::vector<std::uint32_t> awaited(std::uint64_t round, bool to_node_0) const;
  /// Why the exchange cannot complete; empty if it still can.
  std::optional<error> exchange_failure(const std::vector<std::uint32_t>& awaited) const;

  mutable std::mutex mutex_;
  std::condition_variable changed_;

  // Requests of the process.
  bool closing_ = false;
  bool leaving_ = false;
  bool interrupted_ = false;
  bool gathering_ = false;
  bool exchange_failed_ = false;
  std::uint64_t rounds_begun_ = 0;
  /// Contributions that the watch thread has not sent yet. There may be several: an exchange that
  /// all others have already joined completes at once, and the next one may begin.
  std::deque<contribution> contributions_;
  std::string status_;
  std::string give_up_reason_;
  std::function<void(node_id, std::string)> on_lost_;
  std::mutex calling_;  ///< held while on_lost_ is called; taken before mutex_

  // Reports of the watch thread.
  bool joined_ = false;
  bool left_ = false;
  bool loss_delivered_ = false;
  std::string join_failure_;
  bool join_failed_for_now_ = false;
  std::string waiting_;
  std::optional<loss> lost_;
  std::set<node_id> departed_;
  std::map<std::uint64_t, std::vector<shared_bytes>> rounds_;

  std::vector<member> members_;  ///< fixed when joined
  std::atomic<std::int64_t> offset_ns_ = 0;

  // Used only by the watch thread.
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::string> pieces_;
  clock::time_point last_turn_;
  std::optional<clock::time_point> stalled_until_;

  std::thread thread_;
  std::optional<std::stop_callback<std::function<void()>>> on_stop_;
};

/// "node 2 (stages 4, 5)".
std::string name_of(node_id node, std::string_view description, std::string_view status = {});
/// "node 2", "nodes 2, 3, 5".
std::string names_of(const std::vector<std::uint32_t>& nodes);
/// "1.5 s".
std::string seconds_text(std::chrono::milliseconds time);

}  // namespace rrfp::actors::control

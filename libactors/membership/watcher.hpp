/// What the membership of rank 0 and that of the other nodes share: the thread that watches, and
/// the board between it and the threads of the process. The process asks (give these bytes, leave,
/// close), the watch thread tells (who has joined, what came, who is lost).
///
/// The watch thread alone touches sockets. It holds the board's lock for moments only and never
/// while it calls out.
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

  /// Starts the thread and blocks until the node is in the job, or not.
  status join();
  const std::vector<member>& members() const { return members_; }
  node_id node() const { return options_.rank; }
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
  struct round_bytes {
    frame_type as;  ///< piece or deposit
    std::uint64_t round;
    shared_bytes bytes;
  };

  /// The life of the watch thread; returns soon after closing().
  virtual void watch() = 0;
  /// To be called by the destructor of what derives, while watch() still has its object.
  void end();

  // For the watch thread: what the process asks.
  bool closing() const;
  bool leaving() const;
  std::string current_status() const;
  std::string give_up_reason() const;
  std::optional<round_bytes> take_gift();

  // For the watch thread: what it tells.
  /// `for_now`: another try may find the others.
  void tell_join_failed(std::string why, bool for_now = false);
  /// A node that had joined is away before the job began: see membership_options.
  void tell_gone_early(const std::string& who, const std::string& why) const;
  void tell_waiting(std::string what);
  void tell_joined(std::vector<member> members);
  void tell_lost(node_id node, std::string message);
  void tell_departed(node_id node);
  void tell_left();
  void tell_offset(std::chrono::nanoseconds offset) { offset_ns_ = offset.count(); }
  /// Adds a piece; the whole bytes of (round, rank) if it was the last, nothing before, an error if
  /// it cannot be.
  result<shared_bytes> add_piece(const piece& p);

  /// Calls on_lost if there is a loss, a callback, and no call so far.
  void deliver_loss();
  /// Says what this turn's heartbeat is; sets when the next is due.
  void beat(channel& to, clock::time_point& due, clock::time_point now);
  /// How much later than it should have been this turn of the watch thread comes; 0 when in time. A
  /// process that was stopped itself must not take its own silence for that of the others.
  clock::duration late(clock::time_point now);
  /// Whether this process stood still itself a moment ago, long enough for the others to take it
  /// for lost.
  bool stood_still(clock::time_point now) const {
    return stood_still_until_ && now - *stood_still_until_ < options_.node_timeout;
  }
  /// Half a heartbeat: nothing that the watch thread looks after waits longer.
  clock::duration turn() const { return options_.heartbeat / 2; }
  /// Until `fd` is ready, or the process asks something, or `until`. True if ready.
  bool wait_for(int fd, short events, clock::time_point until);
  /// Writes what is left and closes, in at most `linger_max`: a close at once could reset the
  /// connection, and what is on its way would be lost.
  void wind_down(std::vector<channel*> open);

  static std::int64_t ns(clock::time_point t) { return t.time_since_epoch().count(); }

  membership_options options_;
  const secret key_;
  const std::string card_;
  const job_identity job_;
  const wake_event wake_;

 private:
  result<std::vector<std::string>> exchange(std::string bytes, std::chrono::milliseconds limit,
                                            bool to_rank_0);
  /// The nodes whose bytes this one still waits for. Of a gather, rank 0's end it for the others.
  std::vector<std::uint32_t> awaited(std::uint64_t round, bool to_rank_0) const;
  std::optional<error> hindrance(const std::vector<std::uint32_t>& awaited) const;

  mutable std::mutex mutex_;
  std::condition_variable changed_;

  // Asked by the process.
  bool closing_ = false;
  bool leaving_ = false;
  bool interrupted_ = false;
  bool gathering_ = false;
  bool exchange_failed_ = false;
  std::uint64_t rounds_begun_ = 0;
  /// What this node gave to exchanges and the thread has not sent yet: an exchange that all others
  /// had joined in before is over at once, and the next may begin.
  std::deque<round_bytes> gifts_;
  std::string status_;
  std::string give_up_reason_;
  std::function<void(node_id, std::string)> on_lost_;
  std::mutex calling_;  ///< held while on_lost_ is called; taken before mutex_

  // Told by the watch thread.
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

  // Of the watch thread alone.
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::string> pieces_;
  clock::time_point last_turn_;
  std::optional<clock::time_point> stood_still_until_;

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

/// The shell around a membership core: the watch thread, its sockets, and what it shares with the
/// other threads of the process. They ask by posting events (send these bytes, leave) and wait for
/// the reports of the watch thread (joined, exchanged, lost).
///
/// Only the watch thread uses sockets and the core, which decides. It holds the lock of the shared
/// state briefly, and never during a callback.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include <rrfp/core/follower_core.hpp>
#include <rrfp/core/leader_core.hpp>
#include <rrfp/membership/membership.hpp>

#include "channel.hpp"
#include "end_mark.hpp"
#include "run_key_file.hpp"

#include <poll.h>

namespace rrfp::actors::control {

using clock = std::chrono::steady_clock;

class watcher final : public membership {
 public:
  /// Without a key the nodes share a run_key_file. `listener`: of node 0, a socket that already
  /// listens, or empty. `inquirer`: it only asks as this process, see core_options::inquires.
  watcher(membership_options options, std::optional<secret> key, file_descriptor listener,
          std::optional<process_id> inquirer = {});
  ~watcher() override { end(); }

  /// Starts the watch thread and blocks until the node has joined, or until the join fails.
  status join();
  const std::vector<member>& members() const override { return members_; }
  node_id node() const override { return options_.node; }
  node_id leader() const override { return choice_.node(); }
  std::uint32_t nodes() const override { return options_.nodes; }
  std::chrono::nanoseconds clock_offset() const override {
    return std::chrono::nanoseconds{offset_ns_};
  }
  void on_lost(std::function<void(node_id, std::string)> callback) override;
  void on_node_waits(std::function<void(node_id)> callback) override;
  void set_status(const std::string& text) override;
  std::optional<node_loss> loss(std::chrono::milliseconds limit) override;
  result<std::string> exchange(std::string bytes, std::chrono::milliseconds limit,
                               const answering& answer) override;
  status finish(std::chrono::milliseconds limit) override;
  void leave(std::chrono::milliseconds limit, std::function<void()> at_the_end) override;
  void interrupt() override;

 private:
  struct link {
    explicit link(file_descriptor fd) : io(std::move(fd)) {}

    channel io;
    bool admitted = false;  ///< both sides have proved the key and agree about the job
    bool refused = false;   ///< the reason was sent
    bool closed = false;    ///< removed at the end of the turn
    bool ready = false;     ///< poll() says so
    clock::time_point tls_since{};

    bool holds_tls_slot() const { return io.has_tls() && !admitted && !refused && !closed; }
  };

  // For the process.
  void end();
  void search(const std::stop_token& stop);
  /// Until a join or an exchange has ended, or `deadline`; calls on_waiting now and then.
  void wait(std::unique_lock<std::mutex>& lock, clock::time_point deadline,
            const std::function<bool()>& ended);
  /// On node 0 the bytes of all, which it must answer; on the others the answer.
  result<std::vector<std::string>> gather(std::string bytes, std::chrono::milliseconds limit,
                                          bool last);
  void send_answers(std::vector<std::string> answers);
  /// Requires the lock.
  void post(event::any e);
  void post_now(event::any e);
  bool closing() const;

  // For the watch thread: one turn of its loop.
  void watch();
  void begin();
  void one_turn();
  void wait_for_sockets();
  void receive(connection_id id, link& l);
  void on_end(connection_id id, link& l, const channel::arrival& last);
  /// Node 0 begins TLS on a connection with the right first bytes, if few others hold memory for
  /// it.
  void begin_tls(connection_id id, link& l);
  bool may_begin_tls();
  void on_refused_key(connection_id id, const link& l);
  /// The key of the next connection.
  result<secret> key();
  void serve_requests();
  void flush();
  /// Nothing is left to send.
  void end_leaving();
  /// The files that node 0 leaves to nobody.
  void remove_files() const;
  /// Calls on_lost if there is a loss and a callback that has not been called.
  void deliver_loss();

  status open_listener();
  /// Waits until the name of the rendezvous is one of an address of this machine.
  status listen_at_rendezvous();
  status listen_at_one_of(const std::vector<address>& addresses);
  void accept_all();
  void connect();
  claim own_claim() const;
  /// Where this process listens: now, or at its life line if it must lead later.
  void feed_listening(const address& here);
  /// Nothing: `problem` says why, and sets `refused` if nobody listens there.
  std::optional<file_descriptor> connect_to(const address& to, event::unreachable& problem);
  /// Adds a link and feeds that it is open.
  link& open_link(file_descriptor fd);
  /// Waits until `fd` is ready, the process makes a request, or `until`. True if `fd` is ready.
  bool wait_for(int fd, short events, clock::time_point until);
  clock::duration turn() const { return options_.heartbeat / 2; }
  /// Writes the remaining frames and closes, within `linger_max`. Closing at once could reset the
  /// connection and lose frames in flight.
  void wind_down();

  void feed(const event::any& e);
  void carry_out(const action::connect& a);
  void carry_out(const action::admit& a);
  void carry_out(const action::refuse& a);
  void carry_out(const action::send& a);
  void carry_out(const action::contribute& a);
  void carry_out(const action::write_notices& a);
  void carry_out(const action::close& a);
  void carry_out(const action::stop_listening&) { listener_.reset(); }
  void carry_out(const action::examine& a);
  void carry_out(const action::look_for_node_0&);
  void carry_out(const action::waiting& a);
  void carry_out(const action::refused_join& a);
  void carry_out(const action::gone_early& a);
  void carry_out(const action::join_failed& a);
  void carry_out(const action::fence& a);
  void carry_out(const action::job_over&);
  void carry_out(const action::clock_offset& a) { offset_ns_ = a.ns; }
  void carry_out(const action::joined& a);
  void carry_out(const action::node_waits& a);
  void carry_out(const action::leader_returns&);
  void carry_out(const action::lost& a);
  void carry_out(const action::left&) { may_leave_ = true; }
  void carry_out(const action::exchanged& a);
  void carry_out(const action::exchange_failed& a);
  /// Changes what the process knows over all its memberships, if that is kept.
  void know(const std::function<void(process_standing::knowledge&)>& change) const {
    if (options_.standing != nullptr) options_.standing->change(change);
  }
  /// Changes the shared state, and wakes the threads that wait for it.
  template <class Change>
  void report(Change change);

  const membership_options options_;
  const std::optional<process_id> inquirer_;
  const leader_choice choice_;  ///< when it begins
  const std::optional<secret> key_;
  const job_identity job_;
  /// Of node 0, if its replacement will find it: it has this port.
  const std::optional<end_mark> end_mark_;
  const wake_event wake_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;

  // Requests of the process.
  std::deque<event::any> requests_;
  bool closing_ = false;
  bool leaving_ = false;
  std::function<void()> at_the_end_;  ///< set before leaving_
  bool interrupted_ = false;
  bool exchanging_ = false;
  std::string give_up_reason_;
  std::function<void(node_id, std::string)> on_lost_;
  std::function<void(node_id)> on_node_waits_;
  std::mutex calling_;  ///< held while a callback is called; taken before mutex_

  // Reports of the watch thread.
  bool joined_ = false;
  bool left_ = false;
  bool over_ = false;  ///< all nodes have agreed on the end
  bool loss_delivered_ = false;
  std::optional<action::join_failed> join_failure_;
  std::string waiting_;
  std::optional<action::lost> lost_;
  std::optional<result<std::vector<shared_bytes>>> exchanged_;

  std::vector<member> members_;  ///< fixed when joined
  std::atomic<std::int64_t> offset_ns_ = 0;

  // Used only by the watch thread.
  std::variant<leader_core, follower_core> core_;
  tls_context tls_;
  std::optional<run_key_file> run_key_file_;  ///< once the port is known
  file_descriptor listener_;
  short listens_ = POLLIN;
  std::map<connection_id, link> links_;
  std::uint32_t links_opened_ = 0;
  std::optional<clock::time_point> connect_at_;
  bool may_leave_ = false;

  std::map<node_id, std::jthread> examinations_;
  std::jthread search_;  ///< for node 0, while it is absent

  std::thread thread_;
  std::optional<std::stop_callback<std::function<void()>>> on_stop_;
};

}  // namespace rrfp::actors::control

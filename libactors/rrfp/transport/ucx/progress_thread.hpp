/// The thread that makes progress: it drains the queue, polls for a while, sleeps.
///
///   busy -> idle for `spin` -> arm UCX and sleep -> an event of UCX, a post(), or a due time
///
/// UCX and the parts of the transport that call it are used by the thread that holds `driving_`.
/// While the progress thread sleeps, send() takes it and sends at once, which saves waking that
/// thread: a sender calls UCX, but never its progress, so no sink runs on a sender's thread.
///
/// The thread sets `sleeps_` and then checks the queue once more before it sleeps; post() adds to
/// the queue and then checks `sleeps_`. So no work waits for a sleeping thread.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "receiver.hpp"

namespace rrfp::actors::ucx {

class progress_thread {
 public:
  using call = std::function<void(peer_table&)>;
  /// The node is lost. Accepted until the thread ends, so that the thread does not wait for an
  /// answer from that node.
  struct loss {
    node_id node;
    std::string why;
  };
  using work = std::variant<tensor_send, bytes_send, actor_message_send, call, loss>;

  progress_thread(node_state& node, worker w);
  progress_thread(const progress_thread&) = delete;
  progress_thread& operator=(const progress_thread&) = delete;
  ~progress_thread();

  const std::string& address() const { return worker_->address(); }
  /// Sends from the thread of the caller, if the progress thread sleeps or is between two rounds,
  /// and nothing is queued; else posts the message. `Message`: what sender::send() takes.
  template <class Message>
  void send(Message m);
  /// Queues work for the thread. Called from any thread; after stop() the work is dropped.
  void post(work w);
  /// Runs `f` on the progress thread and returns its result; empty once that has stopped. Must not
  /// be called on that thread.
  template <class F>
  auto ask(F f) -> std::optional<decltype(f(std::declval<peer_table&>()))>;
  bool is_this_thread() const { return std::this_thread::get_id() == id_; }

  /// Sends disconnect messages, closes the endpoints and ends the thread, within about close_max.
  void stop();

 private:
  using clock = std::chrono::steady_clock;

  void run();
  void carry_out(work& w);
  void wake() const;
  bool work_once();
  void end_round(std::unique_lock<std::mutex>& driving);
  bool drain();
  /// Until there may be work. Returns soon while UCX is not done with a send, which it must be
  /// polled for.
  void sleep(std::unique_lock<std::mutex>& driving);
  void wait_for_event(std::chrono::milliseconds limit) const;
  void send_disconnects(std::unique_lock<std::mutex>& driving, clock::time_point limit);
  void close_endpoints(clock::time_point limit);

  node_state& node_;
  std::optional<worker> worker_;
  peer_table peers_;
  sender sender_;
  receiver receiver_;

  const int wake_descriptor_;
  std::mutex driving_;
  std::mutex mutex_;
  std::vector<work> queue_;
  bool closed_ = false;  ///< no more work but losses is accepted; changes with both mutexes locked
  std::vector<work> draining_;
  std::atomic<bool> has_work_ = false;
  std::atomic<bool> sleeps_ = false;
  bool is_between_rounds_ = false;  ///< used by the progress thread alone
  bool was_refused_ = false;        ///< UCX has refused the last sleep, and nothing was done since
  std::thread thread_;
  std::atomic<std::thread::id> id_;  ///< set by the thread; that of thread_ changes in join()
};

template <class F>
auto progress_thread::ask(F f) -> std::optional<decltype(f(std::declval<peer_table&>()))> {
  using answer = decltype(f(std::declval<peer_table&>()));
  // Shared with the queued call: if that is dropped unrun, the promise breaks.
  auto promised = std::make_shared<std::promise<answer>>();
  auto future = promised->get_future();
  post(call{[promised = std::move(promised), f = std::move(f)](peer_table& peers) {
    promised->set_value(f(peers));
  }});
  try {
    return future.get();
  } catch (const std::future_error&) {
    return std::nullopt;
  }
}

}  // namespace rrfp::actors::ucx

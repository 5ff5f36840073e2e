/// The one thread that calls UCX: drain the queue, make progress, look for a while, sleep.
///
///   busy -> nothing to do for `spin` -> arm UCX and sleep -> an event of UCX, a post(), or a due
///   time
///
/// Between "I sleep" and the sleep itself the queue is looked at once more, and who posts looks
/// whether the thread sleeps; so no work is left lying.
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
  using failure_handler = std::function<void(node_id, std::string)>;
  using call = std::function<void(peer_table&)>;
  using work = std::variant<tensor_send, bytes_send, call>;

  progress_thread(node_state& node, worker w);
  progress_thread(const progress_thread&) = delete;
  progress_thread& operator=(const progress_thread&) = delete;
  ~progress_thread();

  const std::string& address() const { return worker_->address(); }
  /// From any thread. Dropped after stop().
  void post(work w);
  /// What `f` returns on the progress thread; nothing once that has stopped. Not from that thread.
  template <class F>
  auto ask(F f) -> std::optional<decltype(f(std::declval<peer_table&>()))>;
  bool is_this_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

  void on_failure(failure_handler failed);
  void fetch_to_devices(ucx_transport::device_room room);
  /// Says farewell, closes what is open, ends the thread. At most about close_max.
  void stop();

 private:
  using clock = std::chrono::steady_clock;

  void run();
  bool work_once();
  bool drain();
  void sleep();
  void say_farewell(clock::time_point limit);
  void let_go(clock::time_point limit);

  node_state& node_;
  std::optional<worker> worker_;
  failure_handler failed_;
  peer_table peers_;
  sender sender_;
  receiver receiver_;

  int wake_descriptor_ = -1;
  int epoll_descriptor_ = -1;
  std::mutex mutex_;
  std::vector<work> queue_;
  bool closed_ = false;  ///< nothing is queued any more
  std::vector<work> draining_;
  std::atomic<bool> has_work_ = false;
  std::atomic<bool> sleeps_ = false;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

template <class F>
auto progress_thread::ask(F f) -> std::optional<decltype(f(std::declval<peer_table&>()))> {
  using answer = decltype(f(std::declval<peer_table&>()));
  // Shared, for the question may be dropped unanswered; that breaks the promise.
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
